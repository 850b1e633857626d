"""Draw how features that carry a client's level replace the graph, and a graph with permuted names.

Two data sets, each without and with such features: radon, where the uranium in a county's soil tells how
much radon its houses have, and series, where the last values of a series tell its level. Strengths are chosen
by cross-validation on training rows ("auto").
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from figure_files import BLUE, GREEN, ORANGE, PURPLE, Facts, Tables, run_script
from matplotlib.figure import Figure

import fedlap as fl
from fedlap.report.paired_tests import compare_leader, compare_paired, compare_rows
from fedlap.report.verdict import describe_lead
from fedlap.training.metrics import METRICS

NAME = "level-features"
PAGE, STATISTICS = "explanation/when-not.md", "explanation/statistics.md"
EXAMPLE = "radon: floor"
SEEDS = 8
LR, ROUNDS = {"radon": 0.1, "series": 0.02}, {"radon": 60, "series": 300}  # lags have a large curvature
SERIES, MONTHS, TEST_MONTHS, LAGS = 24, 12, 60, 6
PERSISTENCE, LEVEL_STD, SEASON = 0.6, 2.0, 1.0
COLOURS = {"fedu (known)": BLUE, "fedu (shuffled)": PURPLE, "local": ORANGE, "global": GREEN}
TITLES = {
    "fedu (known)": "FedU", "fedu (shuffled)": "FedU, shuffled graph", "local": "Local", "global": "Global",
}  # fmt: skip
CASES = {
    "radon: floor": {"name": "radon"},
    "radon: floor, uranium": {"name": "radon", "features": ["floor", "uranium"]},
    "series: season": 0,
    "series: season, 6 lags": LAGS,
}
CONTRASTS = (("fedu (known)", "global"), ("fedu (known)", "fedu (shuffled)"))
Scores = Mapping[str, Sequence[float]]


def load_series(seed: int, lags: int) -> tuple[fl.Federation, fl.Graph]:
    """Return monthly series on a ring, whose levels are smooth along it; the features are season and lags."""
    draw, names = np.random.default_rng(seed), tuple(f"series-{place:02d}" for place in range(SERIES))
    phase = 2 * np.pi * np.arange(SERIES) / SERIES + draw.uniform(0, 2 * np.pi)
    level = LEVEL_STD * (np.cos(phase) + np.sin(2 * phase + draw.uniform(0, 2 * np.pi)))
    month = np.arange(MONTHS + TEST_MONTHS + LAGS)
    season = np.stack([np.cos(2 * np.pi * month / 12), np.sin(2 * np.pi * month / 12)], 1)
    train, test = {}, {}
    for place, name in enumerate(names):
        noise, past = draw.normal(size=len(month)), draw.normal() / (1 - PERSISTENCE**2) ** 0.5
        rest = np.empty(len(month))
        for step, value in enumerate(noise):
            past = PERSISTENCE * past + value
            rest[step] = past
        y = level[place] + SEASON * season[:, 0] + rest
        columns = [season[LAGS:], *(y[LAGS - lag : len(y) - lag, None] for lag in range(1, lags + 1))]
        x = np.concatenate(columns, 1)
        train[name], test[name] = (x[:MONTHS], y[LAGS:][:MONTHS]), (x[MONTHS:], y[LAGS:][MONTHS:])
    return fl.Federation.from_arrays(train, test=test), fl.Graph.ring(names)


def score(case: str, seeds: int = SEEDS) -> Scores:
    """Return the pooled test RMSE of each method, one value per seed."""
    found: Any = CASES[case]
    data = case.split(":")[0]
    methods = {name: {"name": name, "lr": LR[data]} for name in ("fedu", "local", "global")}
    methods["fedu"] |= {"strength": "auto", "mixing": "implicit"}
    result = fl.compare(
        methods, data=(lambda seed: load_series(seed, found)) if isinstance(found, int) else found,
        graph=["known", "shuffled"], seeds=range(seeds), rounds=ROUNDS[data], batch="all", evaluate_every=0,
        score_training="never",
    )  # fmt: skip
    frame = result.scores.query("metric == 'rmse'")
    return {name: [round(value, 6) for value in rows.value] for name, rows in frame.groupby("method")}


def compute() -> Facts:
    """Return the scores of every case."""
    return {case: score(case) for case in CASES}


def draw(facts: Facts) -> Figure:
    """Draw the mean RMSE of every method and case with its 95 % interval."""
    figure = Figure((9.2, 3.0))
    for ax, cases in zip(figure.subplots(1, 2), np.array(list(CASES)).reshape(2, 2).tolist(), strict=True):
        for group, case in enumerate(cases):
            for place, (name, colour) in enumerate(COLOURS.items()):
                pair = compare_paired(facts[case][name], [0.0] * len(facts[case][name]))
                half = pair.interval[1] - pair.mean if pair.interval else 0.0
                ax.errorbar(
                    group + 0.14 * (place - 1.5), pair.mean, half, color=colour, marker="o", markersize=5,
                    capsize=2, label=TITLES[name] if not group else None,
                )  # fmt: skip
        ax.set_xticks([0, 1], [case.split(": ")[1] for case in cases])
        ax.set(title=cases[0].split(":")[0], ylabel="test RMSE", xlim=(-0.5, 1.5))
        ax.margins(y=0.15)
    figure.axes[1].legend()
    figure.subplots_adjust(wspace=0.25)
    return figure


def tables(facts: Facts) -> Tables:
    """Return the table of the page: mean RMSE by method, and two tested differences."""
    rows = []
    for case in CASES:
        scores = {name: np.array(facts[case][name]) for name in TITLES}
        texts = {name: f"{values.mean():.3f}" for name, values in scores.items()}
        least = min(texts.values(), key=float)
        tests = compare_rows(scores, CONTRASTS)
        rows.append([
            case,
            *(f"**{text}**" if text == least else text for text in texts.values()),
            *(f"{test.pair.mean:+.3f}, {test.describe_outcome(higher_is_better=False)}" for test in tests),
        ])  # fmt: skip
    headers = ["data and features", *TITLES.values(), "FedU − Global", "FedU − shuffled"]
    return {(PAGE, "level features"): (headers, rows), (STATISTICS, "verdict"): describe_example(facts)}


def describe_example(facts: Facts) -> str:
    """Return the verdict that fedlap prints for the first case."""
    scores = {name: np.array(values) for name, values in facts[EXAMPLE].items()}
    leader = min(scores, key=lambda name: float(scores[name].mean()))
    tests, metric = compare_leader(scores, leader), METRICS["rmse"]
    return "\n".join(describe_lead(leader, tests, SEEDS, metric, lambda other: f"{leader} − {other} = "))


if __name__ == "__main__":
    run_script(NAME, compute, draw, tables)
