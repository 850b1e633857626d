"""The command that writes a page of results: report."""

import json
import shlex
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedlap.algorithms import ALGORITHMS, BASELINES, GraphLearning
from fedlap.cli import console
from fedlap.cli.arguments import format_seeds
from fedlap.cli.graph_source import load_experiment_data, load_learned_graph
from fedlap.cli.options import OUTPUT_PANEL
from fedlap.cli.threads import use_threads
from fedlap.cli.trained_models import load_trained_models
from fedlap.data import SOURCES
from fedlap.data.federation import Federation
from fedlap.data.partition import NATURAL
from fedlap.errors import InputError
from fedlap.experiments.run_folder import RunFolder
from fedlap.graph import Graph
from fedlap.report.page import Page, PageSection, write_page
from fedlap.report.page.client_figures import ClientGains, build_graph_sections, build_label_heatmap
from fedlap.report.page.client_gains import (
    PersonalScores,
    build_gain_sections,
    compute_gains,
    describe_seeds,
    score_clients,
)
from fedlap.report.page.result_folders import StoredResults, load_results
from fedlap.report.page.result_sections import (
    build_objective_facts,
    build_result_sections,
    build_settings_sections,
)
from fedlap.report.sweep_table import Sweep
from fedlap.report.tuning_table import Tuning

MAX_CLIENT_ROWS = 20  # whose models are scored per client
MAX_GRAPHS = 3  # drawn on one page


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Folders of runs, or one folder of compare, sweep or tune.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the page. Default: `report` in the first RUN.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    open_: Annotated[
        bool,
        typer.Option("--open", metavar="", help="Open the page in a browser.", rich_help_panel=OUTPUT_PANEL),
    ] = False,
) -> None:
    """Write a self-contained HTML page of results.

    The page shows tables, curves, clients, the graph and settings. The folder also gets the tables as .md,
    .csv and .tex and the figures as .png and .pdf.
    """
    use_threads(None)
    found = load_results(runs)
    folder = runs[0] / "report" if out is None else out
    page = build_page(found, shlex.join(["fedlap", "report", *map(str, runs)]))
    address = write_page(page, folder).resolve().as_uri()
    console.print_result(address)
    if open_ and not webbrowser.open(address):
        console.print_remark("note: no browser found; open the page by its address")


def build_page(found: StoredResults, command: str) -> Page:
    """Build the page of the runs that were found."""
    comparison = found.comparison
    sections = list(build_result_sections(found))
    objective = build_objective_facts(found)
    if objective is not None:
        sections.append(objective)
    if not isinstance(comparison, Tuning):
        sections += _build_client_sections(found)
    sections += build_settings_sections(found)
    rows = ", ".join(comparison.runs) if len(comparison.runs) <= 6 else f"{len(comparison.runs)} compared"
    if isinstance(comparison, Sweep):
        rows = " × ".join(comparison.field_names)
    verdict = comparison.describe_verdict()
    lead = (
        f"{comparison.describe_table()}. {_format_sentence(verdict[0])}"
        if verdict
        else f"{comparison.describe_table()}."
    )
    return Page(f"{comparison.describe_subject()}: {rows}", lead, sections, f"{found.command}\n{command}")


def _format_sentence(text: str) -> str:
    return text.strip().rstrip(":.") + "."


def _build_client_sections(found: StoredResults) -> Iterator[PageSection]:
    """Yield sections on clients' gains, their rows and the graph; report what has to be omitted."""
    first = found.first_row
    try:
        data = [load_experiment_data(run.experiment) for run in first]
    except InputError as error:
        console.print_remark(f"note: clients and graph are omitted; {error}")
        return
    federation, known = data[0]
    personal = _score_clients(found, [federation for federation, _ in data])
    names = {row: found.runs[row][0].experiment.algorithm["name"] for row in personal.scores}
    base = next((row for row, name in names.items() if name == BASELINES[0]), "") if len(names) > 1 else ""
    if personal.scores:
        yield from build_gain_sections(personal, base or None)
    label_heatmap = build_label_heatmap(federation, format_seeds([first[0].experiment.seed]))
    if label_heatmap is not None:
        yield label_heatmap
    seed = format_seeds([first[0].experiment.seed]) if len(found.comparison.seeds) > 1 else ""
    for number, row in enumerate(_find_rows_with_graphs(found), 1):
        learns = _learns_graph(found.runs[row][0].experiment.algorithm["name"])
        if learns and (why := found.explain_stale_models(row)):
            console.print_remark(f"note: the learned graph of {row} is omitted; {why}")
            continue
        client_gains = None
        if base and row in names:
            gains = compute_gains(personal, row, base)[0].tolist()
            by_client = dict(zip(personal.clients[0], gains, strict=True))
            client_gains = ClientGains(base, by_client, describe_seeds(personal, [0]))
        graph = _load_graph(found.runs[row][0], federation, known)
        yield from build_graph_sections(
            row, graph, client_gains, seed, "graph" if number == 1 else f"graph-{number}"
        )


def _find_rows_with_graphs(found: StoredResults) -> list[str]:
    """Return the first row of every distinct graph; a learned graph counts separately."""
    rows: dict[str, str] = {}
    for row, runs in found.runs.items():
        experiment = runs[0].experiment
        name = experiment.algorithm["name"]
        if experiment.graph:
            rows.setdefault(f"{_learns_graph(name)} {json.dumps(experiment.graph)}", row)
    return list(rows.values())[:MAX_GRAPHS]


def _learns_graph(name: str) -> bool:
    """Return whether the method of this name learns a graph."""
    return name in ALGORITHMS and issubclass(ALGORITHMS[name], GraphLearning)


def _load_graph(run: RunFolder, federation: Federation, known: Graph | None) -> Graph:
    learned = load_learned_graph(run, federation.clients)
    graph = run.experiment.build_graph(federation, known) if learned is None else learned[1]
    return graph.align(federation.clients)


def _score_clients(found: StoredResults, data: Sequence[Federation]) -> PersonalScores:
    """Score personal models per client, for rows of the same data whose models were not trained since."""
    contents = [run.experiment.content for run in found.first_row]
    scores: dict[str, list[np.ndarray]] = {}
    for row in found.comparison.ranked_rows if int(data[0].test.count.sum()) else []:
        runs = found.runs[row]
        try:
            if [run.experiment.content for run in runs] != contents:
                raise InputError("its data differ from those of the first row")
            if why := found.explain_stale_models(row):
                raise InputError(why)
            if len(scores) < MAX_CLIENT_ROWS:
                pairs = zip(data, runs, strict=True)
                scores[row] = [
                    score_clients(federation, load_trained_models(run.folder)) for federation, run in pairs
                ]
        except InputError as error:
            console.print_remark(f"note: clients of {row} are omitted; {error}")
    experiment = found.first_row[0].experiment
    names = [federation.clients for federation in data]
    same_rows = experiment.partition["name"] == NATURAL and SOURCES[experiment.data["name"]].is_tabular
    shared_clients = same_rows and len(set(names)) == 1
    return PersonalScores(
        names, scores, list(found.comparison.seeds), shared_clients, found.comparison.is_classification
    )
