"""The page of a comparison, a sweep, a tuning or runs, stored or in memory."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedlap.algorithms import BASELINES
from fedlap.data import SOURCES
from fedlap.data.federation import Federation
from fedlap.data.partition import NATURAL
from fedlap.errors import DivergedError, InputError
from fedlap.experiments.experiment import Experiment
from fedlap.graph import Graph
from fedlap.report.page import Page, PageSection
from fedlap.report.page.answer_sections import (
    build_answer_table,
    build_coefficient_sections,
    build_map,
    build_predictions,
)
from fedlap.report.page.client_figures import ClientGains, build_graph_sections, build_label_heatmap
from fedlap.report.page.client_gains import (
    PersonalScores,
    build_gain_sections,
    compute_gains,
    describe_seeds,
)
from fedlap.report.page.reported_runs import ReportedResults
from fedlap.report.page.result_sections import (
    build_objective_facts,
    build_result_sections,
    build_settings_sections,
)
from fedlap.report.seed_list import format_seeds
from fedlap.report.sweep_table import Sweep
from fedlap.report.tuning_table import Tuning

MAX_CLIENT_ROWS = 20  # whose models are scored per client
MAX_GRAPHS = 3  # drawn on one page

Remark = Callable[[str], None]  # called with what the page omits, and why


def build_page(found: ReportedResults, command: str, on_omission: Remark = lambda text: None) -> Page:
    """Build the page of results; `on_omission` is called with the reason for each omitted section."""
    comparison = found.comparison
    sections = list(build_result_sections(found))
    objective = build_objective_facts(found)
    if objective is not None:
        sections.append(objective)
    if not isinstance(comparison, Tuning):
        sections += _build_client_sections(found, on_omission)
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
    commands = "\n".join(text for text in (found.command, command) if text)
    return Page(f"{comparison.describe_subject()}: {rows}", lead, sections, commands)


def _format_sentence(text: str) -> str:
    return text.strip().rstrip(":.") + "."


def _build_client_sections(found: ReportedResults, on_omission: Remark) -> Iterator[PageSection]:
    """Yield sections on clients' gains, their rows and the graph."""
    first = found.first_row
    try:
        data = [run.load_data() for run in first]
    except (InputError, DivergedError) as error:
        on_omission(f"clients and graph are omitted; {error}")
        return
    federation, known = data[0]
    personal = _score_clients(found, [federation for federation, _ in data], on_omission)
    names = {row: found.runs[row][0].experiment.algorithm["name"] for row in personal.scores}
    base = next((row for row, name in names.items() if name == BASELINES[0]), "") if len(names) > 1 else ""
    if personal.scores:
        yield from build_gain_sections(personal, base or None)
        yield from _build_answer_sections(found, personal, base, federation, known, on_omission)
    label_heatmap = build_label_heatmap(federation, format_seeds([first[0].experiment.seed]))
    if label_heatmap is not None:
        yield label_heatmap
    seed = format_seeds([first[0].experiment.seed]) if len(found.comparison.seeds) > 1 else ""
    for number, row in enumerate(_find_rows_with_graphs(found), 1):
        run = found.runs[row][0]
        if run.learns_graph and (why := found.explain_stale_models(row)):
            on_omission(f"the learned graph of {row} is omitted; {why}")
            continue
        client_gains = None
        if base and row in names:
            gains = compute_gains(personal, row, base)[0].tolist()
            by_client = dict(zip(personal.clients[0], gains, strict=True))
            client_gains = ClientGains(base, by_client, describe_seeds(personal, [0]))
        try:
            graph = run.load_graph(federation, known)
        except InputError as error:
            on_omission(f"the graph of {row} is omitted; {error}")
            continue
        yield from build_graph_sections(
            row, graph, client_gains, seed, "graph" if number == 1 else f"graph-{number}"
        )


def _build_answer_sections(
    found: ReportedResults,
    personal: PersonalScores,
    base: str,
    federation: Federation,
    known: Graph | None,
    on_omission: Remark,
) -> Iterator[PageSection]:
    """Yield a table, maps, coefficients and predictions of the first row with a graph, or first row."""
    with_graph = [row for row in _find_rows_with_graphs(found) if row in personal.scores]
    row = (with_graph or list(personal.scores))[0]
    run = found.runs[row][0]
    seed = format_seeds([run.experiment.seed])
    compared = base if row != base else ""
    try:
        graph = run.load_graph(federation, known) if with_graph else None
    except InputError:
        graph = None  # The section of the graph reports it.
    try:
        coefficients = run.compute_coefficients(federation, known)
        yield build_answer_table(row, compared, personal, federation, graph, coefficients, seed)
        if compared:
            gains = compute_gains(personal, row, base)[0].tolist()
            about = f"Gain of each client by {row} over {base}, {describe_seeds(personal, [0])}."
            gain_map = build_map(
                federation, graph, gains, f"Map of gains over {base}", about, "map-gains", personal.unit,
                f"gain_{personal.column}", signed=True,
            )  # fmt: skip
            if gain_map is not None:
                yield replace(gain_map, meaning=personal.describe_gain(base))
        if coefficients is not None:
            yield from build_coefficient_sections(row, coefficients, federation, graph, seed)
        predictions = build_predictions(row, run.load_personals(), federation, seed)
        if predictions is not None:
            yield predictions
    except InputError as error:
        on_omission(f"coefficients and predictions of {row} are omitted; {error}")


def _find_rows_with_graphs(found: ReportedResults) -> list[str]:
    """Return the first row of every distinct graph; a learned graph counts separately."""
    rows: dict[str, str] = {}
    for row, runs in found.runs.items():
        graph = runs[0].experiment.graph
        if graph:
            rows.setdefault(f"{runs[0].learns_graph} {json.dumps(graph)}", row)
    return list(rows.values())[:MAX_GRAPHS]


def _score_clients(found: ReportedResults, data: Sequence[Federation], on_omission: Remark) -> PersonalScores:
    """Score personal models per client, for rows of the same data whose models were not trained since."""
    contents = [run.experiment.content for run in found.first_row]
    metric = found.comparison.metric
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
                scores[row] = [run.score_clients(federation, metric) for federation, run in pairs]
        except InputError as error:
            on_omission(f"clients of {row} are omitted; {error}")
    names = [federation.clients for federation in data]
    return PersonalScores(
        names,
        scores,
        list(found.comparison.seeds),
        _has_natural_clients(found.first_row[0].experiment) and len(set(names)) == 1,
        metric,
    )


def _has_natural_clients(experiment: Experiment) -> bool:
    """Return whether clients are part of the data, and not drawn by the seed."""
    source = SOURCES.get(experiment.data["name"])
    return experiment.partition.get("name") == NATURAL and (source is None or not source.is_generated)
