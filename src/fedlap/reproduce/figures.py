"""Figures of a recipe: curves over rounds, the effect of η, gains per client, labels, learned graphs."""

from collections.abc import Mapping

import numpy as np
from scipy import sparse

from fedlap.report.graph_layout import compute_layout
from fedlap.report.page.sections import (
    BarsSection,
    CurveSeries,
    FigureSection,
    GraphSection,
    HeatmapSection,
    Panel,
    Records,
)
from fedlap.reproduce.cell_results import ResultFolder, RowResult
from fedlap.reproduce.recipe import Recipe

BASELINE_ROW = "local"  # gains and losses per client are measured against this row


def build_curve_figures(recipe: Recipe, results: ResultFolder, reading: str) -> list[FigureSection]:
    """Build curves of test accuracy and training loss, one panel per cell, with bands of one std."""
    figures = []
    for field, title, factor in (("accuracy", "Test accuracy", 100.0), ("train_loss", "Training loss", 1.0)):
        panels = []
        for cell in recipe.cells:
            rows = results.read_rows(recipe, cell, reading)
            series = [
                _build_curve(recipe, name, row, field, factor) for name, row in rows.items() if row.finished
            ]
            if series:
                unit = "test accuracy %" if factor > 1 else "training loss"
                panels.append(Panel(recipe.cells[cell].title, "round", unit, series, log_y=factor == 1.0))
        if panels:
            figures.append(
                FigureSection(
                    title=f"{title} over rounds: {recipe.readings[reading].title}",
                    about="Pooled over clients; mean over seeds, bands of one standard deviation.",
                    name=f"{recipe.name}-{reading}-{field.replace('_', '-')}",
                    panels=panels,
                )
            )
    return figures


def _build_curve(recipe: Recipe, name: str, row: RowResult, field: str, factor: float) -> CurveSeries:
    stored = row.values["curves"]
    mean, std = factor * np.array(stored[field]), factor * np.array(stored[f"{field}_std"])
    low = mean - std if factor > 1 else np.maximum(mean - std, mean / 10)  # a logarithm has no zero
    x = [float(value) for value in stored["round"]]
    return CurveSeries(recipe.rows[name].title, x, mean.tolist(), low.tolist(), (mean + std).tolist())


def build_strength_figure(recipe: Recipe, results: ResultFolder, reading: str) -> FigureSection | None:
    """Build a figure of accuracy against η; methods without η are horizontal lines."""
    panels = []
    for cell in recipe.cells:
        rows = results.read_rows(recipe, cell, reading)
        mixed: dict[str, list[tuple[float, RowResult]]] = {}
        level: dict[str, RowResult] = {}
        for name, row in rows.items():
            algorithm = recipe.rows[name].algorithm
            if "strength" not in algorithm:
                level[name] = row
                continue
            kind = "FedU, implicit mixing" if algorithm.get("mixing") == "implicit" else "FedU"
            mixed.setdefault(kind, []).append((float(algorithm["strength"]), row))
        every = sorted({eta for rows_by_eta in mixed.values() for eta, _ in rows_by_eta})
        series = [
            _build_strength_series(
                kind,
                [eta for eta, row in rows_by_eta if row.finished],
                [row for _, row in rows_by_eta if row.finished],
            )
            for kind, rows_by_eta in mixed.items()
        ]
        series += [
            _build_strength_series(recipe.rows[name].title, every, [row] * len(every), dashed=True)
            for name, row in level.items()
            if row.finished
        ]
        if any(curve.x for curve in series):
            panels.append(Panel(recipe.cells[cell].title, "η", "test accuracy %", series, log_x=True))
    if not panels:
        return None
    return FigureSection(
        title=f"Accuracy against η: {recipe.readings[reading].title}",
        about="After the last round, mean over seeds, bands of one standard deviation. Explicit mixing has "
        "no point where μRηρ is above 2, since it is unstable there; the table has that number.",
        name=f"{recipe.name}-{reading}-strengths",
        panels=panels,
    )


def _build_strength_series(
    name: str, x: list[float], rows: list[RowResult], dashed: bool = False
) -> CurveSeries:
    mean = [float(row.accuracy.mean()) for row in rows]
    std = [float(row.accuracy.std(ddof=1)) if len(row.seeds) > 1 else 0.0 for row in rows]
    low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
    return CurveSeries(name, x, mean, None if dashed else low, None if dashed else high, dashed)


def build_gain_figures(recipe: Recipe, results: ResultFolder, reading: str) -> list[BarsSection]:
    """Build bars of each client's accuracy minus its accuracy under Local."""
    figures = []
    for cell in recipe.cells:
        rows = results.read_rows(recipe, cell, reading)
        alone = rows.get(BASELINE_ROW)
        if alone is None or "clients" not in alone.values:
            continue
        labels = list(alone.values["clients"])
        series = [
            (recipe.rows[name].title, _compute_gains(row, alone, labels))
            for name, row in rows.items()
            if name != BASELINE_ROW and row.finished and set(labels) <= set(row.values["clients"])
        ]
        if series:
            figures.append(
                BarsSection(
                    title=f"Gain per client: {recipe.cells[cell].title}, {recipe.readings[reading].title}",
                    about="Accuracy of each client on its test rows minus Local's; mean over seeds. Every "
                    "seed has its own split and its own scarce clients.",
                    name=f"{recipe.name}-{cell}-{reading}-clients",
                    labels=labels,
                    series=series,
                    unit="points",
                    records=Records(
                        ["client", "method", "gain_points"],
                        [
                            [label, method, gain]
                            for method, values in series
                            for label, gain in zip(labels, values, strict=True)
                        ],
                    ),
                )
            )
    return figures


def _compute_gains(row: RowResult, alone: RowResult, labels: list[str]) -> list[float]:
    accuracy, accuracy_alone = row.values["clients"], alone.values["clients"]
    return [100 * (accuracy[label] - accuracy_alone[label]) for label in labels]


def build_label_heatmaps(recipe: Recipe, results: ResultFolder) -> list[HeatmapSection]:
    """Build heatmaps of training rows per client and label, one per partition of the data."""
    heatmaps: dict[str, HeatmapSection] = {}
    for cell, described in recipe.cells.items():
        key = f"{described.data} {described.partition} {described.scarce}"
        for reading in recipe.readings:
            known = results.read(recipe.name, cell, reading).get("clients")
            if known and key not in heatmaps:
                heatmaps[key] = HeatmapSection(
                    title=f"Training rows by client and label: {described.title.rpartition(', ')[0]}",
                    about="One line per label, one column per client, at the first seed; darker: more rows.",
                    name=f"{recipe.name}-{cell}-labels",
                    rows=known["labels"],
                    columns=known["names"],
                    values=np.transpose(known["train"]).tolist(),
                )
    return list(heatmaps.values())


def build_learned_graph_figures(recipe: Recipe, results: ResultFolder, reading: str) -> list[GraphSection]:
    """Build figures of the learned graphs at the first seed."""
    figures = []
    for cell in recipe.cells:
        for name, row in results.read_rows(recipe, cell, reading).items():
            if "graph" in row.values:
                clients = results.read(recipe.name, cell, reading)["clients"]
                figures.append(_build_learned_graph(recipe, cell, reading, name, row, clients))
    return figures


def _build_learned_graph(
    recipe: Recipe, cell: str, reading: str, name: str, row: RowResult, clients: Mapping[str, list[list[int]]]
) -> GraphSection:
    names = [str(name) for name in clients["names"]]
    edges = [(int(i), int(j), float(w)) for i, j, w in row.values["graph"]]
    begin, end, weights = zip(*edges, strict=True)
    matrix = sparse.coo_array((weights, (begin, end)), shape=(len(names), len(names))).tocsr()
    at = compute_layout(sparse.csr_array(matrix + matrix.T))
    colours = [int(np.argmax(counts)) for counts in clients["train"]]
    return GraphSection(
        title=f"Learned graph: {recipe.cells[cell].title}, {recipe.readings[reading].title}",
        about="Edges join clients whose models are similar, at the first seed; the colour is a client's most "
        "frequent label.",
        name=f"{recipe.name}-{cell}-{reading}-{name}-graph",
        nodes=[(n, float(x), float(y), c) for n, (x, y), c in zip(names, at, colours, strict=True)],
        edges=edges,
    )
