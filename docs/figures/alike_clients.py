"""Draw when a graph does not help: by how alike all clients are, and by their number of rows.

Clients on a ring have linear models that are smooth on it. From left to right in the first panel neighbours
become more alike, until all clients are. The second panel gives the clients more rows. Strengths are chosen
by cross-validation on training rows ("auto"), for the ring and for the ring with permuted names.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from figure_files import BLUE, FAINT, GREEN, ORANGE, PURPLE, Facts, Tables, run_script
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fedlap as fl
from fedlap.report.paired_tests import compare_paired

NAME = "alike-clients"
PAGE = "explanation/when-not.md"
CLIENTS, FEATURES, NOISE, TEST_ROWS = 24, 6, 1.0, 200
SEEDS = 6
SMOOTHNESS = (0.0, 1.0, 10.0, 100.0, 1000.0, 100000.0)
ROWS = (5, 10, 20, 40, 80, 160, 320)
USUAL_SMOOTHNESS, USUAL_ROWS = 10.0, 12
LR, ROUNDS = 0.1, 60
COLOURS = {"fedu (known)": BLUE, "fedu (shuffled)": PURPLE, "local": ORANGE, "global": GREEN}
TITLES = {
    "fedu (known)": "FedU, ring", "fedu (shuffled)": "FedU, shuffled ring",
    "local": "Local", "global": "Global",
}  # fmt: skip
Scores = Mapping[str, Sequence[float]]


def score(smoothness: float, rows: int, seeds: int = SEEDS) -> Scores:
    """Return the pooled test RMSE of each method, one value per seed."""

    def load(seed: int) -> object:
        return fl.data.synthetic(
            "regression", clients=CLIENTS, features=FEATURES, rows=rows, test_rows=TEST_ROWS,
            smoothness=smoothness, size=2.0, noise=NOISE, seed=seed,
        )  # fmt: skip

    fedu = {"name": "fedu", "lr": LR, "strength": "auto", "mixing": "implicit"}
    methods = {"fedu": fedu, "local": {"name": "local", "lr": LR}, "global": {"name": "global", "lr": LR}}
    result = fl.compare(
        methods, data=load, graph=["known", "shuffled"], seeds=range(seeds), rounds=ROUNDS, batch="all",
        evaluate_every=0, score_training="never",
    )  # fmt: skip
    frame = result.scores.query("metric == 'rmse'")
    return {name: [round(value, 6) for value in rows.value] for name, rows in frame.groupby("method")}


def compute() -> Facts:
    """Return the scores by smoothness, and by rows."""
    return {
        "smoothness": [score(value, USUAL_ROWS) for value in SMOOTHNESS],
        "rows": [score(USUAL_SMOOTHNESS, rows) for rows in ROWS],
    }


def draw(facts: Facts) -> Figure:
    """Draw the error above the noise by smoothness, and the gain of FedU by rows."""
    figure = Figure((9.2, 3.3))
    left, right = figure.subplots(1, 2)
    for name, colour in COLOURS.items():
        draw_band(
            left, [np.array(point[name]) - NOISE for point in facts["smoothness"]], colour, TITLES[name]
        )
    left.set_xticks(range(len(SMOOTHNESS)), [f"{value:g}" for value in SMOOTHNESS])
    left.set(title="How alike are the clients?", ylabel="test RMSE above the noise", ylim=(0, None))
    left.set_xlabel("smoothness of the true models on the ring:\nunrelated ← → all equal")
    left.legend()
    for name in ("fedu (known)", "fedu (shuffled)"):
        gains = [100 * (1 - np.array(point[name]) / np.array(point["local"])) for point in facts["rows"]]
        draw_band(right, gains, COLOURS[name], TITLES[name])
    right.axhline(0, color=FAINT, linewidth=1.0, zorder=0)
    right.set_xticks(range(len(ROWS)), [f"{value}" for value in ROWS])
    right.set(title="How many rows has a client?", xlabel="mean training rows per client")
    right.set_ylabel("lower RMSE than Local, %")
    right.legend()
    figure.subplots_adjust(wspace=0.22)
    return figure


def draw_band(ax: Axes, values: Sequence[np.ndarray], colour: str, label: str) -> None:
    """Draw the mean over seeds, and its 95 % interval as bars."""
    pairs = [compare_paired(value, np.zeros_like(value)) for value in values]
    mean = np.array([pair.mean for pair in pairs])
    half = [pair.interval[1] - pair.mean if pair.interval else 0.0 for pair in pairs]
    ax.errorbar(range(len(mean)), mean, half, color=colour, label=label, marker="o", markersize=4, capsize=2)


def tables(facts: Facts) -> Tables:
    """Return the tables of the page: mean RMSE by method."""
    rows = {
        "alike clients": ("smoothness", [f"{value:g}" for value in SMOOTHNESS], facts["smoothness"]),
        "rows per client": ("rows per client", [str(value) for value in ROWS], facts["rows"]),
    }
    return {
        (PAGE, name): (
            [first, *TITLES.values()],
            [[label, *format_scores(point)] for label, point in zip(labels, points, strict=True)],
        )
        for name, (first, labels, points) in rows.items()
    }


def format_scores(point: Scores) -> list[str]:
    """Return the cells of a row: the mean of each method, with the least in bold."""
    means = {name: float(np.mean(point[name])) for name in TITLES}
    texts = {name: f"{mean:.3f}" for name, mean in means.items()}
    least = min(texts.values(), key=float)
    return [f"**{text}**" if text == least else text for text in texts.values()]


if __name__ == "__main__":
    run_script(NAME, compute, draw, tables)
