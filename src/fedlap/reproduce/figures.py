"""Figures of a recipe: curves over rounds, the effect of η, who gains, who has what, and learned graphs."""

from collections.abc import Mapping

import numpy as np
from scipy import sparse

from fedlap.report.graph_layout import layout
from fedlap.report.page.sections import (
    BarsSection,
    DrawingSection,
    FigureSection,
    HeatSection,
    Panel,
    Records,
    Series,
)
from fedlap.reproduce.cell_results import Finding, Findings
from fedlap.reproduce.recipe import Recipe

BASELINE = "local"  # who gains and who loses is said against this row


def curves(recipe: Recipe, findings: Findings, reading: str) -> list[FigureSection]:
    """Test accuracy and training loss over rounds, a panel for each cell, bands of a standard deviation."""
    made = []
    for field, title, factor in (("accuracy", "Test accuracy", 100.0), ("train_loss", "Training loss", 1.0)):
        panels = []
        for cell in recipe.cells:
            rows = findings.rows(recipe, cell, reading)
            series = [_curve(recipe, name, row, field, factor) for name, row in rows.items() if row.finished]
            if series:
                unit = "test accuracy %" if factor > 1 else "training loss"
                panels.append(Panel(recipe.cells[cell].title, "round", unit, series, log_y=factor == 1.0))
        if panels:
            made.append(
                FigureSection(
                    title=f"{title} over rounds: {recipe.readings[reading].title}",
                    about="Pooled over clients; mean over seeds, bands of one standard deviation.",
                    name=f"{recipe.name}-{reading}-{field.replace('_', '-')}",
                    panels=panels,
                )
            )
    return made


def _curve(recipe: Recipe, name: str, row: Finding, field: str, factor: float) -> Series:
    kept = row.values["curves"]
    mean, std = factor * np.array(kept[field]), factor * np.array(kept[f"{field}_std"])
    low = mean - std if factor > 1 else np.maximum(mean - std, mean / 10)  # a logarithm has no zero
    x = [float(value) for value in kept["round"]]
    return Series(recipe.rows[name].title, x, mean.tolist(), low.tolist(), (mean + std).tolist())


def strengths(recipe: Recipe, findings: Findings, reading: str) -> FigureSection | None:
    """Accuracy against η, by both mixings, with the methods that have none as level lines."""
    panels = []
    for cell in recipe.cells:
        rows = findings.rows(recipe, cell, reading)
        mixed: dict[str, list[tuple[float, Finding]]] = {}
        level: dict[str, Finding] = {}
        for name, row in rows.items():
            algorithm = recipe.rows[name].algorithm
            if "strength" not in algorithm:
                level[name] = row
                continue
            kind = "FedU, implicit mixing" if algorithm.get("mixing") == "implicit" else "FedU"
            mixed.setdefault(kind, []).append((float(algorithm["strength"]), row))
        every = sorted({eta for some in mixed.values() for eta, _ in some})
        series = [
            _series(
                kind, [eta for eta, row in some if row.finished], [row for _, row in some if row.finished]
            )
            for kind, some in mixed.items()
        ]
        series += [
            _series(recipe.rows[name].title, every, [row] * len(every), dashed=True)
            for name, row in level.items()
            if row.finished
        ]
        if any(each.x for each in series):
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


def _series(name: str, x: list[float], rows: list[Finding], dashed: bool = False) -> Series:
    mean = [float(row.accuracy.mean()) for row in rows]
    std = [float(row.accuracy.std(ddof=1)) if len(row.seeds) > 1 else 0.0 for row in rows]
    low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
    return Series(name, x, mean, None if dashed else low, None if dashed else high, dashed)


def gains(recipe: Recipe, findings: Findings, reading: str) -> list[BarsSection]:
    """Each client's accuracy less what it has alone: who gains, who loses."""
    made = []
    for cell in recipe.cells:
        rows = findings.rows(recipe, cell, reading)
        alone = rows.get(BASELINE)
        if alone is None or "clients" not in alone.values:
            continue
        labels = list(alone.values["clients"])
        series = [
            (recipe.rows[name].title, _gain(row, alone, labels))
            for name, row in rows.items()
            if name != BASELINE and row.finished and set(labels) <= set(row.values["clients"])
        ]
        if series:
            made.append(
                BarsSection(
                    title=f"Who gains: {recipe.cells[cell].title}, {recipe.readings[reading].title}",
                    about="Accuracy of each client on its own test rows, less Local's; mean over seeds, each "
                    "of which has other rows and other scarce clients.",
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
    return made


def _gain(row: Finding, alone: Finding, labels: list[str]) -> list[float]:
    own, without = row.values["clients"], alone.values["clients"]
    return [100 * (own[label] - without[label]) for label in labels]


def label_pictures(recipe: Recipe, findings: Findings) -> list[HeatSection]:
    """Who has which labels, once for each way that data are dealt out."""
    made: dict[str, HeatSection] = {}
    for cell, described in recipe.cells.items():
        key = f"{described.data} {described.partition} {described.scarce}"
        for reading in recipe.readings:
            known = findings.read(recipe.name, cell, reading).get("clients")
            if known and key not in made:
                made[key] = HeatSection(
                    title=f"Training rows by client and label: {described.title.rpartition(', ')[0]}",
                    about="A line a label, a column a client, at the first seed: the stronger the more.",
                    name=f"{recipe.name}-{cell}-labels",
                    rows=known["labels"],
                    columns=known["names"],
                    values=np.transpose(known["train"]).tolist(),
                )
    return list(made.values())


def learned_graphs(recipe: Recipe, findings: Findings, reading: str) -> list[DrawingSection]:
    """Graphs that were learned, at the first seed."""
    made = []
    for cell in recipe.cells:
        for name, row in findings.rows(recipe, cell, reading).items():
            if "graph" in row.values:
                clients = findings.read(recipe.name, cell, reading)["clients"]
                made.append(_drawing(recipe, cell, reading, name, row, clients))
    return made


def _drawing(
    recipe: Recipe, cell: str, reading: str, name: str, row: Finding, clients: Mapping[str, list[list[int]]]
) -> DrawingSection:
    names = [str(each) for each in clients["names"]]
    edges = [(int(i), int(j), float(w)) for i, j, w in row.values["graph"]]
    begin, end, weights = zip(*edges, strict=True)
    matrix = sparse.coo_array((weights, (begin, end)), shape=(len(names), len(names))).tocsr()
    at = layout(sparse.csr_array(matrix + matrix.T))
    colours = [int(np.argmax(counts)) for counts in clients["train"]]
    return DrawingSection(
        title=f"Learned graph: {recipe.cells[cell].title}, {recipe.readings[reading].title}",
        about="Whose models the models themselves say are alike, at the first seed; colours are the label "
        "that a client has most of.",
        name=f"{recipe.name}-{cell}-{reading}-{name}-graph",
        nodes=[(n, float(x), float(y), c) for n, (x, y), c in zip(names, at, colours, strict=True)],
        edges=edges,
    )
