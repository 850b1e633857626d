"""Draw the test error by strength on radon, for the county borders and for permuted names."""

from collections.abc import Sequence

import numpy as np
from figure_files import BLUE, GREEN, INK, ORANGE, PURPLE, Facts, Tables, run_script
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fedlap as fl
from fedlap.report.paired_tests import compare_paired

NAME = "strength-curve"
PAGE = "explanation/stability.md"
SEEDS, LR, ROUNDS = 6, 0.1, 100
PULLS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)  # ηρ
GRAPHS = {"known": "county borders", "shuffled": "borders, shuffled"}
COLOURS = {"known": BLUE, "shuffled": PURPLE}


def sweep_strengths(shuffled: bool, seeds: int = SEEDS, rounds: int = ROUNDS) -> list[list[float]]:
    """Return the pooled test RMSE, one row per strength and one value per seed."""
    rho = load_graph().rho
    result = fl.sweep(
        {"name": "fedu", "lr": LR, "mixing": "implicit"}, "radon",
        vary={"strength": [pull / rho for pull in PULLS]}, graph={"name": "known", "shuffled": shuffled},
        seeds=range(seeds), rounds=rounds, batch="all", evaluate_every=0, score_training="never",
    )  # fmt: skip
    frame = result.scores.query("metric == 'rmse'").sort_values(["strength", "seed"])
    return [rows.value.round(6).tolist() for _, rows in frame.groupby("strength")]


def load_graph() -> fl.Graph:
    """Return the county borders."""
    return fl.data.radon.load_radon().graph


def score_choices(seeds: int = SEEDS, rounds: int = ROUNDS) -> dict[str, dict[str, list[float]]]:
    """Return test RMSE and ηρ of the default strength and of "auto", and RMSE of Local and Global."""
    base = {"name": "fedu", "lr": LR, "mixing": "implicit"}
    result = fl.compare(
        {"default": base, "auto": {**base, "strength": "auto"}, "local": {"name": "local", "lr": LR},
         "global": {"name": "global", "lr": LR}},
        "radon", graph="known", seeds=range(seeds), rounds=rounds, batch="all", evaluate_every=0,
        score_training="never",
    )  # fmt: skip
    frame = result.scores.query("metric == 'rmse'")
    scores = {name: {"rmse": rows.value.round(6).tolist()} for name, rows in frame.groupby("method")}
    rho = load_graph().rho
    for name in ("default", "auto"):
        strengths = [run.algorithm.strength for run in result.results[name].values()]
        scores[name]["pull"] = [round(strength * rho, 4) for strength in strengths]
    return scores


def compute() -> Facts:
    """Return scores by strength, and those of the choices."""
    return {
        "curves": {name: sweep_strengths(name == "shuffled") for name in GRAPHS},
        "choices": score_choices(),
    }


def draw(facts: Facts) -> Figure:
    """Draw the curves with the choices."""
    figure = Figure((7.0, 3.3))
    ax = figure.subplots()
    for name, title in GRAPHS.items():
        draw_interval(ax, facts["curves"][name], COLOURS[name], title)
    for name, colour in (("local", ORANGE), ("global", GREEN)):
        mean = np.mean(facts["choices"][name]["rmse"])
        ax.axhline(mean, color=colour, linestyle="--", linewidth=1.1, label=f"{name.title()}", zorder=0)
    for name, marker in (("default", "s"), ("auto", "D")):
        found = facts["choices"][name]
        pull = np.exp(np.mean(np.log(found["pull"])))
        ax.plot(
            pull, np.mean(found["rmse"]), marker=marker, color=INK, markersize=7, linestyle="", label=name,
            zorder=5,
        )  # fmt: skip
    ax.set(xscale="log", xlabel="strength times ρ", ylabel="test RMSE", title="Radon: test error by strength")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def draw_interval(ax: Axes, values: Sequence[Sequence[float]], colour: str, label: str) -> None:
    """Draw the mean over seeds with its 95 % interval."""
    pairs = [compare_paired(value, [0.0] * len(value)) for value in values]
    mean = [pair.mean for pair in pairs]
    half = [pair.interval[1] - pair.mean if pair.interval else 0.0 for pair in pairs]
    ax.errorbar(PULLS, mean, half, color=colour, marker="o", markersize=4, capsize=2, label=label)


def tables(facts: Facts) -> Tables:
    """Return the table of the page: mean RMSE by choice."""
    choices, known = facts["choices"], [float(np.mean(values)) for values in facts["curves"]["known"]]
    shuffled = [float(np.mean(values)) for values in facts["curves"]["shuffled"]]
    best = int(np.argmin(known))
    rows = [
        ["Local", "0", f"{np.mean(choices['local']['rmse']):.3f}"],
        ["default", format_pulls(choices["default"]["pull"]), f"{np.mean(choices['default']['rmse']):.3f}"],
        ["auto", format_pulls(choices["auto"]["pull"]), f"{np.mean(choices['auto']['rmse']):.3f}"],
        ["best of the curve, by the test rows", f"{PULLS[best]:g}", f"{known[best]:.3f}"],
        ["the same strength, shuffled borders", f"{PULLS[best]:g}", f"{shuffled[best]:.3f}"],
        ["strongest", f"{PULLS[-1]:g}", f"{known[-1]:.3f}"],
        ["Global", "–", f"{np.mean(choices['global']['rmse']):.3f}"],
    ]
    return {(PAGE, "strengths"): (["strength", "ηρ", "test RMSE"], rows)}


def format_pulls(pulls: Sequence[float]) -> str:
    """Return the range of ηρ over seeds."""
    low, high = f"{min(pulls):.2g}", f"{max(pulls):.2g}"
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    run_script(NAME, compute, draw, tables)
