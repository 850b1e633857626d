"""Summarise benchmarks/RESULTS.md: milliseconds per round, drawn and in tables; tables of passed steps."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from figure_files import BLUE, DOCS, FAINT, GREY, Facts, Tables, run_script
from matplotlib.axes import Axes
from matplotlib.figure import Figure

NAME = "benchmark-times"
PAGE = "benchmarks.md"
RESULTS = DOCS.parent / "benchmarks" / "RESULTS.md"
METHODS_PAGE, THEORY_PAGE = "reference/methods.md", "explanation/theory.md"
COSTS = "methods, processor time against FedAvg"
LARGE_COSTS = "methods on large sparse graphs, processor time against FedAvg"
SITE = "documentation site"
LARGE, PLANNED = "large federations, methods", "planned federations"
SECTIONS = (
    "cpu", "NVIDIA H200", "deployments", "large federations", LARGE, PLANNED, "peers", COSTS, LARGE_COSTS,
    SITE,
)  # fmt: skip
PASSING = {  # cases of `benchmarks.passing`, and the names of their cases in the page
    "har-linear-steps": "Human Activity, linear, 5 steps",
    "har-linear-epochs": "Human Activity, linear, 5 epochs",
    "har-mlp-steps": "Human Activity, MLP, 5 steps",
    "har-mlp-epochs": "Human Activity, MLP, 5 epochs",
    "clusters": "5 clusters, true graph",
    "ring": "ring, true graph",
    "radon": "Radon, RMSE",
    "colorado": "Colorado, RMSE",
}
VARIANTS = ("har-linear-steps", "clusters", "ring")  # cases of `benchmarks.passing_variants`
# Sections with all methods, whose scores are in the repository, and earlier ones with fewer methods.
STORED, EARLIER = "passing, scores stored", "passing"
RIVALS = ("fedu", "ditto", "pfedme", "mocha")
CLAIM = "fedu, Holm over differences to FedU alone"  # the row of the comparison that was planned
BETTER = "fedu-passing better by, ± s.e., Holm"
SIGNIFICANT = 0.05


def read_section(name: str) -> dict[str, object]:
    """Return the conditions, headers and rows of a section of RESULTS.md."""
    text = RESULTS.read_text("utf-8")
    section = re.search(rf"<!-- {re.escape(name)} -->(.*?)<!-- /{re.escape(name)} -->", text, re.DOTALL)
    if section is None:
        raise ValueError(f"{RESULTS} has no section {name!r}")
    lines = section[1].strip().splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {"about": lines[2], "headers": table[0], "rows": table[2:]}


def compute() -> Facts:
    """Return the sections that the page shows."""
    text = RESULTS.read_text("utf-8")
    names = [*SECTIONS, *(f"passing variants: {case}" for case in VARIANTS)]
    of_cases = [f"{kind}: {case}" for kind in (STORED, EARLIER) for case in PASSING]
    names += [name for name in of_cases if f"<!-- {name} -->" in text]
    return {name: read_section(name) for name in names}


def pick(section: Facts, columns: Sequence[str]) -> list[list[str]]:
    """Return these columns of a section."""
    places = [section["headers"].index(column) for column in columns]
    return [[row[place] for place in places] for row in section["rows"]]


def tabulate_ratios(section: Facts) -> tuple[list[str], list[list[str]]]:
    """Return what was measured, each with the ratio of the prediction; predictions are in RESULTS.md."""
    names = section["headers"]
    places = [place for place, name in enumerate(names) if name != "predicted"]
    headers = ["predicted/measured" if names[place] == "ratio" else names[place] for place in places]
    return headers, [[row[place] or " " for place in places] for row in section["rows"]]


def tabulate_differences(facts: Facts) -> list[list[str]]:
    """Return fedu-passing's score and how much better it is than rivals, per case."""
    rows = []
    for case, title in PASSING.items():
        found = find_rivals(facts, case)
        found["fedu"] = found.get(CLAIM, found["fedu"])
        cells = [describe_difference(found[name][1]) if name in found else "–" for name in RIVALS]
        reached = next(score for name, (score, _) in found.items() if name.startswith("rounds"))
        shuffled = [
            found.get(f"{name} (shuffled)", ("–",))[0].split(" ")[0] for name in ("fedu-passing", "fedu")
        ]
        score = found["fedu-passing"][0].split(" ")[0]
        rows.append(
            [title, score, *cells, reached.removesuffix(" (median)"), " / ".join(dict.fromkeys(shuffled))]
        )
    return rows


def find_rivals(facts: Facts, case: str) -> dict[str, tuple[str, str]]:
    """Return scores and differences of a case by method, from its earlier section if it has more rivals."""
    stored, earlier = (read_scores(facts.get(f"{kind}: {case}")) for kind in (STORED, EARLIER))
    return stored if stored.keys() >= {*RIVALS} & earlier.keys() else earlier


def read_scores(section: Facts | None) -> dict[str, tuple[str, str]]:
    """Return scores and differences of the methods of a section that were run."""
    rows = pick(section, [*section["headers"][:2], BETTER]) if section else []
    return {name: (score, better) for name, score, better in rows if score != "not run"}


def list_stored(facts: Facts) -> list[str]:
    """Return the cases with stored scores."""
    return [case for case in PASSING if f"{STORED}: {case}" in facts]


def tabulate_all_methods(facts: Facts) -> list[list[str]]:
    """Return fedu-passing's score and how much better it is than every other method, by case."""
    sections = [facts[f"{STORED}: {case}"] for case in list_stored(facts)]
    columns = [
        {row[0]: tuple(row[1:]) for row in pick(section, [*section["headers"][:3], BETTER])}
        for section in sections
    ]
    listed = dict.fromkeys(name for column in columns for name in column if not name.startswith("rounds"))
    names = [name for name in listed if name != CLAIM]
    return [[name, *(describe_place(column, name) for column in columns)] for name in names]


def describe_place(column: Mapping[str, tuple[str, ...]], name: str) -> str:
    """Return a method's cell: fedu-passing's score, its lead over another method, or why there is none."""
    score, seeds, better = column.get(name, ("–", "", ""))
    if name == "fedu-passing":
        return score.split(" ")[0]
    fewer = f", {seeds} seeds" if seeds not in ("", column["fedu-passing"][1]) else ""
    return f"{describe_difference(better)}{fewer}" if better else score


def tabulate_variants(facts: Facts) -> list[list[str]]:
    """Return how much better fedu-passing is than each variant and MOCHA, by case."""
    columns = [dict(pick(facts[f"passing variants: {case}"], ["method", BETTER])) for case in VARIANTS]
    names = [name for name in columns[0] if name != "fedu-passing"]
    return [[name, *(describe_difference(column[name]) for column in columns)] for name in names]


def describe_difference(text: str) -> str:
    """Return a difference with its standard error, and whether it is significant after Holm's correction."""
    difference, p = text.split(", p = ")
    if float(p) >= SIGNIFICANT:
        return difference
    return f"{difference} ({'better' if difference.startswith('+') else 'worse'})"


def parse_number(text: str) -> float:
    """Return a number that may have separators of thousands."""
    return float(text.replace(",", ""))


def draw(facts: Facts) -> Figure:
    """Draw the times of simulated rounds on a CPU, and of deployed rounds."""
    figure = Figure((9.2, 3.9))
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    cpu = pick(facts["cpu"], ["workload", "compared with", "fedlap, ms/round", "ms/round"])
    names = [f"{workload.split(',')[0]}\n{other}" for workload, other, *_ in cpu]
    draw_pairs(left, names, [(parse_number(row[2]), parse_number(row[3])) for row in cpu])
    left.set(title="simulation, ms per round", xlabel="two CPU cores", xlim=(1, 30_000))
    rows = pick(facts["deployments"], ["system", "clients", "ms/round"])
    times = {
        (system.split()[0], clients): parse_number(time)
        for system, clients, time in rows
        if "FedAvg" in system
    }
    counts = list(dict.fromkeys(clients for _, clients in times))
    draw_pairs(
        right, [f"{clients} clients\nFlower" for clients in counts],
        [(times["fedlap", clients], times["Flower", clients]) for clients in counts],
    )  # fmt: skip
    right.set(title="deployment, ms per round", xlabel="processes with TLS on one machine, two CPU cores")
    left.legend(loc="lower right", fontsize=8)
    figure.subplots_adjust(wspace=0.42)
    return figure


def draw_pairs(ax: Axes, names: Sequence[str], pairs: Sequence[tuple[float, float]]) -> None:
    """Draw the times of fedlap and of another system below each other, on a logarithmic axis."""
    places = np.arange(len(names))
    for shift, values, colour, label in (
        (-0.19, [pair[0] for pair in pairs], BLUE, "fedlap"),
        (0.19, [pair[1] for pair in pairs], GREY, "the other system"),
    ):
        bars = ax.barh(places + shift, values, 0.36, color=colour, label=label, left=0)
        ax.bar_label(bars, [f"{value:,.0f}" for value in values], padding=2, fontsize=7.5)
    ax.set_xscale("log")
    ax.set_xlim(1, 4 * max(max(pair) for pair in pairs))
    ax.set_yticks(places, names, fontsize=7.5)
    ax.invert_yaxis()
    ax.grid(axis="x", color=FAINT, linewidth=0.4)
    ax.set_axisbelow(True)


def tables(facts: Facts) -> Tables:
    """Return the tables of the page."""
    columns = {
        "cpu": ["workload", "fedlap, ms/round", "compared with", "ms/round", "ratio", "ratio to limit"],
        "NVIDIA H200": ["workload", "fedlap", "required", "target", "peak GB"],
        "deployments": ["system", "clients", "ms/round", "CPU s/round", "MB, server", "MB per client"],
        "large federations": ["clients", "engine", "ms/round", "µs per sampled client", "GB in all"],
        PLANNED: [
            "method",
            "clients",
            "engine",
            "s/round",
            "limit",
            "GB per worker",
            "GB per machine",
            "MB sent/round",
        ],
        "peers": ["system", "peers", "ms/round", "least to most", "MB per peer"],
        COSTS: [
            "method",
            *(name for name in facts[COSTS]["headers"] if name.startswith("ratio")),
            "more work by its paper",
        ],
        LARGE_COSTS: [
            "method",
            "clients",
            "ms/round of FedAvg",
            "ms/round",
            "ratio",
            "ms of a copy of all models",
        ],
        SITE: ["build", "seconds", "processor seconds"],
    }
    differences = [
        "case", "fedu-passing", *(f"− {name}" for name in RIVALS), "rounds to FedU's J",
        "shuffled graph: fedu-passing / fedu",
    ]  # fmt: skip
    conditions = [[name, facts[name]["about"]] for name in SECTIONS]
    shown = {
        name: [[cell or " " for cell in row] for row in pick(facts[name], chosen)]
        for name, chosen in columns.items()
    }
    return {
        (PAGE, "conditions"): (["section of RESULTS.md", "when, where and how"], conditions),
        **{(PAGE, name): (columns[name], rows) for name, rows in shown.items()},
        (PAGE, LARGE): tabulate_ratios(facts[LARGE]),
        (METHODS_PAGE, "passed steps"): (differences, tabulate_differences(facts)),
        (METHODS_PAGE, "passed steps against all methods"): (
            ["fedu-passing better than", *(PASSING[case] for case in list_stored(facts))],
            tabulate_all_methods(facts),
        ),
        (THEORY_PAGE, "forms of passed steps"): (
            ["fedu-passing better by", *(PASSING[case] for case in VARIANTS)],
            tabulate_variants(facts),
        ),
    }


if __name__ == "__main__":
    run_script(NAME, compute, draw, tables)
