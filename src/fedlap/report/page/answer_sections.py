"""Sections with answers per client: maps, coefficients with intervals, predictions against true values."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float64

from fedlap.data.federation import Federation
from fedlap.data.places import Places
from fedlap.graph import Graph
from fedlap.personal import Coefficients, Personals
from fedlap.personal.coefficients import FAR_FROM_MINIMUM, format_estimate
from fedlap.report.page.client_gains import (
    PersonalScores,
    average_scores,
    compute_gains,
    describe_seeds,
)
from fedlap.report.page.sections import (
    IntervalPanel,
    IntervalSection,
    MapSection,
    Records,
    RecordValue,
    ScatterSection,
    TableCell,
    TableSection,
)
from fedlap.report.paired_tests import CONFIDENCE
from fedlap.training.client_answers import list_neighbours

NORMAL_QUANTILE = 1.959964  # half the width of a 95 % interval, in standard errors
MAX_COEFFICIENTS = 4  # with a panel and a map of their own
MAX_SCATTER_POINTS = 2_000  # of a scatter plot
MAX_MAP_EDGES = 5_000
EXTREMES = 4  # clients with a name on the map, at either end


def build_map(
    federation: Federation,
    graph: Graph | None,
    values: Sequence[float],
    title: str,
    about: str,
    name: str,
    unit: str,
    column: str,
    signed: bool,
) -> MapSection | None:
    """Build a map of the clients, coloured by value; None if their places are not known."""
    if federation.places is None:
        return None
    nodes = [
        (client, x, y, value)
        for client, (x, y), value in zip(
            federation.clients, _project_places(federation.places), values, strict=True
        )
    ]
    edges, left_out = _list_edges(graph, len(nodes))
    known = [place for place in np.argsort(values).tolist() if math.isfinite(values[place])]
    labelled = list(dict.fromkeys([*known[:EXTREMES], *known[-EXTREMES:]]))
    coordinates = federation.places.columns
    records: list[list[RecordValue]] = [
        [client, *place, value]
        for client, place, value in zip(
            federation.clients, federation.places.values.tolist(), values, strict=True
        )
    ]
    untested = len(nodes) - len(known)
    hollow = f" {untested} clients without a value are hollow." if untested else ""
    caption = f"{about} Names: the {EXTREMES} lowest and highest.{left_out}{hollow}"
    table = Records(["client", *coordinates, column], records)
    return MapSection(title, caption, name, nodes, edges, unit, signed, labelled, table)


def _project_places(places: Places) -> list[tuple[float, float]]:
    """Project longitude and latitude onto a plane that keeps proportions in the middle of the map."""
    longitude, latitude = places.values[:, 0], places.values[:, 1]
    stretch = math.cos(math.radians(float(latitude.mean())))
    return list(zip((longitude * stretch).tolist(), latitude.tolist(), strict=True))


def _list_edges(graph: Graph | None, clients: int) -> tuple[list[tuple[int, int, float]], str]:
    """Return the edges between clients, and a remark if they are too many to draw."""
    if graph is None:
        return [], ""
    if graph.edges > MAX_MAP_EDGES:
        return [], f" The {graph.edges:,} edges are not drawn."
    matrix = graph.weights.matrix().tocoo()
    return [
        (int(one), int(other), float(weight))
        for one, other, weight in zip(matrix.row, matrix.col, matrix.data, strict=True)
        if one < other < clients
    ], ""


def build_answer_table(
    row: str,
    base: str,
    personal: PersonalScores,
    federation: Federation,
    graph: Graph | None,
    coefficients: Coefficients | None,
    seed: str,
) -> TableSection:
    """Build a table with a line per client: rows, scores, gain, neighbours and coefficients.

    Its records have the score of every client by every method and seed, one per line.
    """
    metric, digits = personal.metric, personal.metric.digits
    scored = {name: average_scores(personal, name)[0] for name in ([base, row] if base else [row])}
    columns = ["client", "train rows", "test rows"]
    columns += [f"{metric.label}{metric.unit}, {name}" for name in scored]
    columns += [f"gain, {personal.unit}"] if base else []
    has_neighbours = graph is not None and graph.edges > 0
    columns += ["nearest neighbours"] if has_neighbours else []
    shown = coefficients if coefficients and len(coefficients.names) <= MAX_COEFFICIENTS else None
    columns += [] if shown is None else list(shown.names)
    gains = compute_gains(personal, row, base)[0] if base else None
    neighbours = list_neighbours(graph, federation.clients)
    lines = []
    for k, client in enumerate(federation.clients):
        cells = [client, str(int(federation.train.count[k])), str(int(federation.test.count[k]))]
        cells += [_format_value(float(values[k]), digits) for values in scored.values()]
        cells += [] if gains is None else [_format_value(float(gains[k]), digits, "+")]
        line = [TableCell(cell) for cell in cells]
        line += [TableCell(", ".join(neighbours[k]), wraps=True)] if has_neighbours else []
        line += [] if shown is None else [TableCell(cell) for cell in _format_estimates(shown, k)]
        lines.append(line)
    about = f"Scores on test rows{metric.direction}, {describe_seeds(personal, [0])}."
    if shown is not None:
        errors = "" if shown.remark else " ± one standard error"
        about += f" Coefficients{errors}: {seed}."
    records: list[list[RecordValue]] = [
        [method, number, client, metric.name, float(value) * metric.sign / metric.factor]
        for method, by_seed in personal.scores.items()
        for number, clients, values in zip(personal.seeds, personal.clients, by_seed, strict=True)
        for client, value in zip(clients, values.tolist(), strict=True)
    ]
    return TableSection(
        f"Every client by {row}", about, "client-scores", columns, lines,
        records=Records(["method", "seed", "client", "metric", "value"], records),
    )  # fmt: skip


def _format_value(value: float, digits: int, sign: str = "") -> str:
    return "–" if math.isnan(value) else f"{value:{sign}z.{digits}f}".replace("-", "−")


def _format_estimates(coefficients: Coefficients, client: int) -> list[str]:
    """Format the coefficients of a client, with their standard errors if these are known."""
    pairs = zip(coefficients.values[client].tolist(), coefficients.errors[client].tolist(), strict=True)
    return [format_estimate(value, error).replace("-", "−") for value, error in pairs]


def build_coefficient_sections(
    row: str, coefficients: Coefficients, federation: Federation, graph: Graph | None, seed: str
) -> Iterator[IntervalSection | MapSection]:
    """Build a forest plot and maps of the coefficients of a row, if there are few of them."""
    if len(coefficients.names) > MAX_COEFFICIENTS:
        return
    values, errors = coefficients.values.numpy(), coefficients.errors.numpy()
    yield _build_intervals(row, coefficients, federation, seed, values, errors)
    for place, name in enumerate(coefficients.names):
        found = build_map(
            federation,
            graph,
            values[:, place].tolist(),
            f"Map of {name}",
            f"Coefficient {name} of each client's model by {row}, {seed}.",
            f"map-coefficient-{place + 1}",
            _describe_unit(federation, name),
            "coefficient",
            signed=False,
        )
        if found is not None:
            yield found


def _describe_unit(federation: Federation, name: str) -> str:
    """Return the unit of a coefficient in the names of the data."""
    if federation.labels is not None:
        return "log odds"
    return federation.target or "target"


def _build_intervals(
    row: str,
    coefficients: Coefficients,
    federation: Federation,
    seed: str,
    values: Float64[np.ndarray, "client coefficient"],
    errors: Float64[np.ndarray, "client coefficient"],
) -> IntervalSection:
    panels = []
    for place, name in enumerate(coefficients.names):
        half = NORMAL_QUANTILE * errors[:, place]
        rows = [
            (
                federation.clients[k],
                float(values[k, place]),
                *(values[k, place] + [-half[k], half[k]]).tolist(),
            )
            for k in np.argsort(-values[:, place], kind="stable")
        ]
        panels.append(
            IntervalPanel(name, _describe_unit(federation, name), rows, float(values[:, place].mean()))
        )
    about = f"Coefficients of each client's model by {row}, {seed}, in the units of the data. "
    if coefficients.remark:
        about += f"Without intervals: {coefficients.remark}. "
    else:
        about += (
            f"Lines: {CONFIDENCE:.0%} intervals by the Gaussian approximation at the minimiser of J, bias "
            "by the neighbours included. "
        )
        if coefficients.distance > FAR_FROM_MINIMUM:
            about += (
                f"Training has not reached the minimiser: the largest distance is "
                f"{coefficients.distance:.1f} standard errors. "
            )
        about += "".join(
            f"{text} " for text in (coefficients.explain_gaps(), coefficients.explain_excess()) if text
        )
    records: list[list[RecordValue]] = [
        [client, name, float(values[k, place]), float(errors[k, place])]
        for place, name in enumerate(coefficients.names)
        for k, client in enumerate(federation.clients)
    ]
    return IntervalSection(
        "Coefficients per client",
        f"{about}Dashed: mean over clients.",
        "coefficients",
        panels,
        Records(["client", "coefficient", "value", "standard_error"], records),
    )


def build_predictions(
    row: str, personals: Personals, federation: Federation, seed: str
) -> ScatterSection | None:
    """Build predictions of test rows against true values; None for classes or several targets."""
    if federation.labels is not None or federation.outputs != 1 or not len(federation.test.y):
        return None
    owner = federation.test.find_owners().tolist()
    names = [federation.clients[k] for k in owner]
    predicted = personals.scores(names, federation.test.x).flatten().tolist()
    true = federation.test.y.flatten().tolist()
    points = list(zip(names, true, predicted, strict=True))
    step = -(-len(points) // MAX_SCATTER_POINTS)
    thinned = f" Every {step}th row is drawn." if step > 1 else ""
    target = federation.target or "target"
    records: list[list[RecordValue]] = [list(point) for point in points]
    return ScatterSection(
        "Predicted against true",
        f"Test rows, predicted by the model of their client by {row}, {seed}. Dashed: exact.{thinned}",
        "predictions",
        f"true {target}",
        f"predicted {target}",
        points[::step],
        Records(["client", "true", "predicted"], records),
    )
