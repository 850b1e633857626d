"""A page with every kind of section, and texts that try to be more than text."""

import math
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

from fedlap.report.page import (
    BarsSection,
    CurveSeries,
    FactsSection,
    FigureSection,
    GraphSection,
    HeatmapSection,
    IntervalPanel,
    IntervalSection,
    MapSection,
    Page,
    Panel,
    Records,
    ScatterSection,
    TableCell,
    TableSection,
    TextSection,
)

NASTY = '<script>alert(\'x\')</script> " onload="1" & $5'

ROUNDS = [float(n) for n in range(1, 31)]


def _curve(name, top, band=True, **more):
    mean = [top * (1 - math.exp(-x / 6)) for x in ROUNDS]
    low, high = ([m - 2 for m in mean], [m + 2 for m in mean]) if band else (None, None)
    return CurveSeries(name, ROUNDS, mean, low, high, **more)


PAGE = Page(
    f"A page & {NASTY}",
    "It leads in.\n\nIn two paragraphs.",
    [
        TableSection(
            "Scores & co",
            "About <scores>.",
            "scores",
            ['method, |all| & "some"', "mean", "worst"],
            [
                [
                    TableCell("fedu_1"),
                    TableCell("97.92 ± 1.06", "paper 95.76 ± 0.46", best=True),
                    TableCell("88.02"),
                ],
                [
                    TableCell(NASTY),
                    TableCell("97.35 ± 1.44", "paper 94.00 ± 0.10"),
                    TableCell("85.40", "unstable 50% #2", muted=True),
                ],
            ],
            "A footer.",
            records=Records(
                ["method", "mean_percent", "std_percent", "paper_percent", "worst_percent"],
                [["fedu_1", 97.92, 1.06, 95.76, 88.02], [NASTY, 97.35, 1.44, 94.0, -85.40]],
            ),
        ),
        TextSection("In words", ["fedu_1 leads.", f"{NASTY} does not."]),
        FigureSection(
            "Curves",
            "Bands are two wide.",
            "curves",
            [
                Panel("Accuracy", "round", "accuracy %", [_curve("fedu_1", 98), _curve(NASTY, 90)]),
                Panel(
                    "By strength",
                    "strength",
                    "loss",
                    [
                        CurveSeries("fedu_1", [0, 0.01, 0.1, 1], [0.5, 0.2, 0.4, math.nan]),
                        CurveSeries("third", [0.01, 0.1], [0.3, 0.35], dashed=True),
                    ],
                    log_x=True,
                    log_y=True,
                ),
            ],
        ),
        BarsSection(
            "Gains",
            "Against local.",
            "gains",
            ["north", "south", "east", "west"],
            [("fedu_1", [1.25, -0.5, 0.0, math.nan]), (NASTY, [-3.0, -2.0, 4.5, 1.0])],
            "points",
            Records(["client", "gain_points"], [["north", 1.25], ["south", -0.5]]),
        ),
        HeatmapSection("Held", "", "held", ["north", "south"], ["a", "b", "c"], [[1, 0, 12], [3, 4, 0]]),
        GraphSection(
            "Graph",
            "A triangle.",
            "graph",
            [("n", 0.0, 0.0, 0), ("s", 1.0, 0.0, 1), ("e", 0.5, 1.0, 2)],
            [(0, 1, 1.0), (1, 2, 0.5), (0, 2, 0.1)],
        ),
        MapSection(
            "Map",
            "Three towns.",
            "map",
            [(NASTY, 10.0, 60.0, 1.5), ("south", 11.0, 59.0, -0.5), ("east", 12.0, 59.5, math.nan)],
            [(0, 1, 1.0), (1, 2, 0.5)],
            "points",
            True,
            [0, 1],
            Records(["client", "gain_points"], [[NASTY, 1.5], ["south", -0.5], ["east", None]]),
        ),
        IntervalSection(
            "Slopes",
            "With 95 % intervals.",
            "slopes",
            [
                IntervalPanel(
                    "slope", "per year", [(NASTY, 1.0, 0.5, 1.5), ("south", -1.0, -3.0, 1.0)], 0.25
                ),
                IntervalPanel("intercept", "", [("south", 2.0, math.nan, math.nan)]),
            ],
            Records(["client", "slope"], [[NASTY, 1.0], ["south", -1.0]]),
        ),
        ScatterSection(
            "Predicted against true",
            "",
            "predicted",
            "true",
            "predicted",
            [(NASTY, 1.0, 1.25), ("south", 2.0, 1.5)],
            Records(["client", "true", "predicted"], [[NASTY, 1.0, 1.25], ["south", 2.0, 1.5]]),
        ),
        FactsSection("Environment", [("python", "3.11"), ("path", "/a/very/long/" + "path" * 40)]),
    ],
    "fedlap compare --data digits && fedlap report RUN",
)
TABLE = next(section for section in PAGE.sections if isinstance(section, TableSection))


def page(out):
    """The file behind the printed address."""
    (line,) = out.split()
    assert line.startswith("file:///")
    return Path(url2pathname(urlparse(line).path))
