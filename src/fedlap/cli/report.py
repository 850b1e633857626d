"""The command that makes a page of results: report."""

import json
import shlex
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedlap.cli import console
from fedlap.cli.arguments import seeds_text
from fedlap.cli.graph_source import learned_graph, loaded
from fedlap.cli.predict import models
from fedlap.cli.threads import use_threads
from fedlap.data import SOURCES
from fedlap.data.federation import Federation
from fedlap.data.partition import NATURAL
from fedlap.errors import InputError
from fedlap.experiments.run_folder import RunFolder
from fedlap.graph import Graph
from fedlap.report.page import Page, Section, write
from fedlap.report.page.client_figures import Sides, drawing, held
from fedlap.report.page.client_gains import Served, gains_of, over, scored
from fedlap.report.page.client_gains import sections as client_sections
from fedlap.report.page.result_folders import Kept, kept
from fedlap.report.page.result_sections import objective_facts, result_sections, settings
from fedlap.report.sweep_table import Sweep
from fedlap.report.tuning_table import Tuning

MOST_ROWS = 20  # whose models are looked at client by client
MOST_GRAPHS = 3  # that are drawn
LEARNS = "fedu-learned"


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Folders of runs, or one that compare, sweep or tune wrote.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the page (default: `report` in the folder named first).")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Make one self-contained page of results: tables, curves, clients, graph, settings.

    Beside it lie the tables as .md, .csv and .tex and the figures as .png and .pdf.
    """
    use_threads(None)
    found = kept(runs)
    folder = runs[0] / "report" if out is None else out
    page = page_of(found, shlex.join(["fedlap", "report", *map(str, runs)]))
    address = write(page, folder).resolve().as_uri()
    console.result(address)
    if open_ and not webbrowser.open(address):
        console.remark("note: no browser was found to open it with")


def page_of(found: Kept, command: str) -> Page:
    """The page of what was found."""
    made = found.made
    sections = list(result_sections(found))
    objective = objective_facts(found)
    if objective is not None:
        sections.append(objective)
    if not isinstance(made, Tuning):
        sections += _about_clients(found)
    sections += settings(found)
    rows = ", ".join(made.runs) if len(made.runs) <= 6 else f"{len(made.runs)} compared"
    if isinstance(made, Sweep):
        rows = " × ".join(made.names)
    said = made.verdict()
    lead = f"{made.title()}. {_sentence(said[0])}" if said else f"{made.title()}."
    return Page(f"{made.subject()}: {rows}", lead, sections, f"{found.command}\n{command}")


def _sentence(text: str) -> str:
    return text.strip().rstrip(":.") + "."


def _about_clients(found: Kept) -> Iterator[Section]:
    """Who gains and who loses, what clients have, and the graph; what cannot be had is said and left out."""
    first = found.first_row
    try:
        data = [loaded(run.experiment) for run in first]
    except InputError as error:
        console.remark(f"note: clients and graph are left out; {error}")
        return
    federation, known = data[0]
    served = _served(found, [each for each, _ in data])
    names = {row: found.runs[row][0].experiment.algorithm["name"] for row in served.scores}
    base = next((row for row, name in names.items() if name == "local"), "") if len(names) > 1 else ""
    if served.scores:
        yield from client_sections(served, base or None)
    held_by = held(federation, seeds_text([first[0].experiment.seed]))
    if held_by is not None:
        yield held_by
    seed = seeds_text([first[0].experiment.seed]) if len(found.made.seeds) > 1 else ""
    for number, row in enumerate(_with_graphs(found), 1):
        learns = found.runs[row][0].experiment.algorithm["name"] == LEARNS
        if learns and (why := found.trained_further(row)):
            console.remark(f"note: the learned graph of {row} is left out; {why}")
            continue
        sides = None
        if base and row in names:
            gains = gains_of(served, row, base)[0].tolist()
            own = dict(zip(served.clients[0], gains, strict=True))
            sides = Sides(base, own, over(served, [0]))
        graph = _graph(found.runs[row][0], federation, known)
        yield from drawing(row, graph, sides, seed, "graph" if number == 1 else f"graph-{number}")


def _with_graphs(found: Kept) -> list[str]:
    """The first row with each graph; some learn one of their own."""
    rows: dict[str, str] = {}
    for row, runs in found.runs.items():
        experiment = runs[0].experiment
        name = experiment.algorithm["name"]
        if experiment.graph:
            rows.setdefault(f"{name == LEARNS} {json.dumps(experiment.graph)}", row)
    return list(rows.values())[:MOST_GRAPHS]


def _graph(run: RunFolder, federation: Federation, known: Graph | None) -> Graph:
    learned = learned_graph(run, federation.clients)
    graph = run.experiment.built_graph(federation, known) if learned is None else learned[1]
    return graph.aligned(federation.clients)


def _served(found: Kept, data: Sequence[Federation]) -> Served:
    """Scores of every client's own model, for rows of the same data whose models were not trained since."""
    contents = [run.experiment.content for run in found.first_row]
    scores: dict[str, list[np.ndarray]] = {}
    for row in found.made.ranked if int(data[0].test.count.sum()) else []:
        runs = found.runs[row]
        try:
            if [run.experiment.content for run in runs] != contents:
                raise InputError("its data are others than those of the first row")
            if why := found.trained_further(row):
                raise InputError(why)
            if len(scores) < MOST_ROWS:
                pairs = zip(data, runs, strict=True)
                scores[row] = [scored(federation, models(run.folder)) for federation, run in pairs]
        except InputError as error:
            console.remark(f"note: clients of {row} are left out; {error}")
    experiment = found.first_row[0].experiment
    names = [federation.clients for federation in data]
    same = experiment.partition["name"] == NATURAL and SOURCES[experiment.data["name"]].tabular
    alike = same and len(set(names)) == 1
    return Served(names, scores, list(found.made.seeds), alike, found.made.classifies)
