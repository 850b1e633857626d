"""Draw how often equal methods are called different, and how many seeds find a difference.

Scores are drawn from a normal distribution, with fedlap's own tests on top of them. A seed shifts the scores
of all methods alike, which the pairing removes.
"""

from collections.abc import Callable, Sequence

import numpy as np
from figure_files import BLUE, FAINT, GREEN, GREY, ORANGE, PURPLE, Facts, Tables, run_script
from matplotlib.figure import Figure

from fedlap.report.paired_tests import LEVEL, adjust_holm, compare_leader, compare_paired

NAME = "false-alarms"
PAGE = "explanation/statistics.md"
METHODS = (2, 3, 4, 6, 8, 12, 16)
SEEDS_OF_ALARMS, REPEATS = 10, 1000
EFFECTS = (0.5, 1.0, 2.0)  # differences in standard deviations of a paired difference
COMPARED = (2, 6, 16)
SEEDS = (2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 40, 60)
POWER = 0.8
Rule = Callable[[dict[str, np.ndarray]], bool]


def draw_scores(generator: np.random.Generator, methods: int, seeds: int) -> dict[str, np.ndarray]:
    """Return the scores of equal methods, whose paired differences have the standard deviation 1."""
    scores = generator.normal(size=(methods, seeds)) / 2**0.5 + generator.normal(size=seeds)
    return {str(place): row for place, row in enumerate(scores)}


def find_leader(scores: dict[str, np.ndarray]) -> str:
    """Return the method with the highest mean."""
    return max(scores, key=lambda name: float(scores[name].mean()))


def alarm_uncorrected(scores: dict[str, np.ndarray]) -> bool:
    """Return whether the leader differs from another method by a test without correction."""
    leader = find_leader(scores)
    p_values = [compare_paired(scores[leader], row).p_value for name, row in scores.items() if name != leader]
    return min(p for p in p_values if p is not None) < LEVEL


def alarm_leader(scores: dict[str, np.ndarray]) -> bool:
    """Return whether the leader differs from another method by Holm's rule over the leader's pairs."""
    leader = find_leader(scores)
    p_values = [compare_paired(scores[leader], row).p_value for name, row in scores.items() if name != leader]
    return min(adjust_holm([p for p in p_values if p is not None])) < LEVEL


def alarm_fedlap(scores: dict[str, np.ndarray]) -> bool:
    """Return whether fedlap calls the leader better than another method."""
    return any(test.significant for test in compare_leader(scores, find_leader(scores)))


RULES: dict[str, Rule] = {
    "no correction": alarm_uncorrected,
    "Holm over the leader's pairs": alarm_leader,
    "Holm over all pairs (fedlap)": alarm_fedlap,
}


def count_alarms(rule: Rule, methods: int, repeats: int = REPEATS) -> float:
    """Return the share of comparisons of equal methods in which the leader is called better than another."""
    generator = np.random.default_rng(methods)
    return sum(rule(draw_scores(generator, methods, SEEDS_OF_ALARMS)) for _ in range(repeats)) / repeats


def measure_power(effect: float, methods: int, seeds: int, repeats: int = REPEATS) -> float:
    """Return how often the difference of one pair is significant if no other pair differs as clearly.

    It is then the first in Holm's rule, whose level is that of one test over the number of all pairs.
    """
    generator = np.random.default_rng(seeds)
    pairs = methods * (methods - 1) // 2
    scores = generator.normal(effect, 1.0, size=(repeats, seeds))
    p_values = [compare_paired(row, np.zeros(seeds)).p_value for row in scores]
    return sum(p is not None and p < LEVEL / pairs for p in p_values) / repeats


def compute() -> Facts:
    """Return shares of false alarms by rule, and powers by effect, methods and seeds."""
    return {
        "alarms": {
            name: [count_alarms(rule, methods) for methods in METHODS] for name, rule in RULES.items()
        },
        "power": {
            f"{effect:g}": {
                str(methods): [measure_power(effect, methods, seeds) for seeds in SEEDS]
                for methods in COMPARED
            }
            for effect in EFFECTS
        },
    }


def draw(facts: Facts) -> Figure:
    """Draw false alarms by number of methods, and powers by number of seeds."""
    figure = Figure((9.2, 3.2))
    left, right = figure.subplots(1, 2)
    for (name, values), colour in zip(facts["alarms"].items(), (ORANGE, PURPLE, BLUE), strict=True):
        left.plot(
            METHODS, [100 * value for value in values], color=colour, marker="o", markersize=4, label=name
        )
    left.axhline(100 * LEVEL, color=FAINT, linewidth=1.0, zorder=0)
    left.set(title="Equal methods called different, %", xlabel="methods compared", ylim=(0, None))
    left.legend(fontsize=8)
    styles = dict(zip(map(str, COMPARED), ("-", "--", ":"), strict=True))
    for (effect, curves), colour in zip(facts["power"].items(), (GREY, BLUE, GREEN), strict=True):
        for methods, values in curves.items():
            right.plot(
                SEEDS, [100 * value for value in values], color=colour, linestyle=styles[methods],
                label=f"{effect} std, {methods} methods",
            )  # fmt: skip
    right.axhline(100 * POWER, color=FAINT, linewidth=1.0, zorder=0)
    right.set(title="Differences found, %", xlabel="seeds", xscale="log", ylim=(0, 102))
    right.set_xticks([2, 5, 10, 20, 40, 60], ["2", "5", "10", "20", "40", "60"])
    right.minorticks_off()
    right.legend(fontsize=7.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.subplots_adjust(wspace=0.2)
    return figure


def find_seeds(powers: Sequence[float]) -> str:
    """Return the least number of seeds with enough power."""
    found = [seeds for seeds, power in zip(SEEDS, powers, strict=True) if power >= POWER]
    return str(found[0]) if found else f"more than {SEEDS[-1]}"


def tables(facts: Facts) -> Tables:
    """Return the tables of the page."""
    alarms = [
        [name, *(f"{100 * value:.0f} %" for value in values)] for name, values in facts["alarms"].items()
    ]
    power = [
        [f"{effect} std", *(find_seeds(values) for values in curves.values())]
        for effect, curves in facts["power"].items()
    ]
    return {
        (PAGE, "false alarms"): (["methods", *map(str, METHODS)], alarms),
        (PAGE, "seeds"): (["true difference", *(f"{count} methods" for count in COMPARED)], power),
    }


if __name__ == "__main__":
    run_script(NAME, compute, draw, tables)
