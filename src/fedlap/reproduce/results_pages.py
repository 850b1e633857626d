"""RESULTS.md: everything that was reproduced, from the files of findings alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedlap.report.page import TableSection, markdown
from fedlap.reproduce import claims, page, score_table
from fedlap.reproduce.cell_results import Finding, Findings, cells_of
from fedlap.reproduce.recipe import Recipe

MUCH = 0.5  # points of difference to the paper that ask for a reason

INTRODUCTION = """# Results

Every table and figure of the paper, ours beside the paper's numbers. This file is written by `fedlap results`
from the files in `results/`, which `fedlap reproduce` wrote; nothing in it is typed by hand but words, which
stand in the recipes (`recipes/*.toml`).

How to read it: accuracy is pooled over all test rows, after the last round, mean ± standard deviation over
seeds, with the paper's in brackets. A number is marked where it is better than every other of its column by
paired t-tests over seeds (two-sided, p below 0.05 by Holm's rule over all pairs), and none where a method of
the column was not run. A seed fixes split, start, sampling and batches for all methods alike. Values of every
method (rate, strength, …) were chosen by cross-validation on the training rows of that very seed: no test row
has a say in anything, and no round but the last counts. Of claims: better and worse are what such a test
shows (Holm's rule over a claim's tests in a cell); as good, that it shows nothing and the difference's 95 %
interval stays above −0.5 points; open, neither. "R local steps" is read in both ways: 5 mini-batches, as the
text has it, and 5 epochs, as the published code has it.

Do the numbers repeat on another machine? Most rows were made on a GPU in float32; a CPU rounds differently.
Tried on Human Activity with scaled features (benchmarks/RESULTS.md, "repeats: machines"): logistic models
gave the same accuracy at all seeds of all four methods, FedU with a hidden layer too, FedU on a learned
graph at all seeds with five steps and at seven of ten with five epochs. With a hidden layer FedProx and
SCAFFOLD, which average all clients into one model, differ at most seeds, by up to 0.4 points, and on MNIST,
α = 0.1, FedProx by up to 0.8 at its rate of 0.3; on features as distributed FedU differs by up to 0.7.
There training amplifies rounding errors from round to round ("repeats: orders" shows the same in float64 on
one machine), and no order of sums is the right one. Rows of FedU on a learned graph with S = 0.1 N were run
again after a repair: before it, places and rounding decided between clients that had never worked, and
seeds did not repeat.
"""
VERDICTS = {
    "holds": "holds for",
    "holds so far": "holds so far, as not all of it was run, for",
    "DOES NOT HOLD": "**does not hold** for",
    "not shown": "is open for",
}


@dataclass(frozen=True)
class Apart:
    """A number that differs much from the paper's."""

    reading: str
    cell: str
    row: str
    difference: float
    reason: str | None


def results(recipes: Sequence[Recipe], findings: Findings) -> str:
    """The whole file."""
    shown = [each for each in recipes if any(True for _ in cells_of(each, findings))]
    shown.sort(key=lambda each: each.order)
    parts = [INTRODUCTION, "## What holds, what does not\n"]
    for each in shown:
        parts += summary(each, findings)
    for each in shown:
        parts += _chapter(each, findings)
    return "\n".join(parts).rstrip() + "\n"


def summary(recipe: Recipe, findings: Findings, remarks: bool = True) -> Iterator[str]:
    """Each claim in a line for each reading: where it holds, where not, and by how much.

    A recipe's remarks are on what came out for RESULTS.md, and not on anybody else's findings.
    """
    made = claims.checked(recipe, findings)
    said = recipe.remarks if remarks else []
    if not made and not said:
        return
    yield f"**{recipe.title}** ({recipe.place})\n"
    for remark in said:
        yield f"{' '.join(remark.split())}\n"
    for claim in recipe.claims:
        for reading in recipe.readings:
            own = [each for each in made if each.claim is claim and each.reading == reading]
            if own:
                yield f"- {claim.text} ({reading}): {_where(recipe, own)}."
    yield ""


def _where(recipe: Recipe, made: Sequence[claims.Checked]) -> str:
    """Which cells have which verdict."""
    said = []
    for verdict, words in VERDICTS.items():
        cells = [each for each in made if each.verdict == verdict]
        if cells:
            names = "; ".join(f"{each.title}{_losses(recipe, each)}" for each in cells)
            said.append(f"{words} {names}")
    return ". ".join(said)


def _losses(recipe: Recipe, each: claims.Checked) -> str:
    """By how much it is worse, and than whom."""
    worse = [against for against in each.against if against.verdict == "worse"]
    words = [f"{recipe.rows[a.other].title} {a.difference:+.2f}" for a in worse]
    if each.spans:
        names = sorted(each.spans, key=lambda name: name != each.claim.row)
        words = [f"{recipe.rows[name].title} {each.spans[name]:.2f}" for name in names]
        words[0] = f"points from lowest to highest: {words[0]}"
    return f" ({', '.join(words)})" if words else ""


def _chapter(recipe: Recipe, findings: Findings) -> Iterator[str]:
    """A recipe's tables."""
    yield f"## {recipe.title}\n"
    yield f"`fedlap reproduce {recipe.name}` · {recipe.place}.\n"
    yield f"{' '.join(recipe.about.split())}\n"
    for reading in recipe.readings:
        table = score_table.table(recipe, findings, reading)
        if table is not None:
            yield _section(table)
        far = [each for each in apart(recipe, findings) if each.reading == reading]
        if far:
            yield f"More than {MUCH:g} points from the paper's, and why:\n"
            yield from _reasons(recipe, far)
            yield ""
    for held in claims.tables(recipe, findings):
        yield _section(held, about=False)
    for reading in recipe.readings:
        chosen = score_table.choices(recipe, findings, reading)
        if chosen is not None:
            yield _section(chosen)
    absent = missing(recipe, findings)
    if absent:
        yield f"Not run yet: {'; '.join(absent)}.\n"
    facts = page.environment(recipe, findings).facts
    yield "Made with: " + "; ".join(f"{key} {value}" for key, value in facts) + ".\n"


def missing(recipe: Recipe, findings: Findings) -> list[str]:
    """Cells that were not run, by reading, and rows of others that were not."""
    made = []
    for reading in recipe.readings:
        whole = [name for name in recipe.cells if not findings.rows(recipe, name, reading)]
        if whole:
            made.append(f"{reading}, all of {', '.join(whole)}")
        for name, cell in recipe.cells.items():
            rows = findings.rows(recipe, name, reading)
            left = [row for row in recipe.rows if row not in rows and row not in cell.without]
            if rows and left:
                made.append(f"{reading}, of {name} {', '.join(left)}")
    return made


def _section(table: TableSection, about: bool = True) -> str:
    """A table under its heading; what is the same for all tables stands in the introduction."""
    body = markdown(replace(table, title="", about=table.about if about else "", footer=""))
    return f"### {table.title}\n\n{body.strip()}\n"


def apart(recipe: Recipe, findings: Findings) -> list[Apart]:
    """Numbers far from the paper's, each with the recipe's reason for it, if it has one."""
    made = []
    for reading, cell, rows in cells_of(recipe, findings):
        for name, row in rows.items():
            difference = _difference(recipe, cell, name, row)
            if difference is not None and abs(difference) > MUCH:
                reason = _reason(recipe, reading, cell, name, difference)
                made.append(Apart(reading, cell, name, difference, reason))
    return made


def _difference(recipe: Recipe, cell: str, name: str, row: Finding) -> float | None:
    paper = recipe.cells[cell].paper.get(name)
    return None if paper is None or not row.finished else float(row.accuracy.mean()) - paper[0]


def _reason(recipe: Recipe, reading: str, cell: str, row: str, difference: float) -> str | None:
    """The first that is for this number."""
    for reason in recipe.reasons:
        if (
            (not reason.readings or reading in reason.readings)
            and (not reason.cells or cell in reason.cells)
            and (not reason.rows or row in reason.rows)
            and reason.side in ("either", "above" if difference > 0 else "below")
        ):
            return " ".join(reason.text.split())
    return None


def _reasons(recipe: Recipe, far: Sequence[Apart]) -> Iterator[str]:
    """A line for each reason with the numbers it is for."""
    by_reason: dict[str | None, list[Apart]] = {}
    for each in far:
        by_reason.setdefault(each.reason, []).append(each)
    for reason, some in by_reason.items():
        names = "; ".join(
            f"{recipe.cells[each.cell].title}: {recipe.rows[each.row].title} {each.difference:+.2f}"
            for each in some
        )
        yield f"- {names}. {reason or 'NOT EXPLAINED.'}"
