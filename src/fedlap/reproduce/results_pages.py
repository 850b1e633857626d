"""Result pages in Markdown: one page of verdicts and one page per recipe, from the stored results alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedlap.report.page import TableSection, render_markdown
from fedlap.reproduce import claims, page, score_table
from fedlap.reproduce.cell_results import ResultFolder, RowResult, iterate_cells
from fedlap.reproduce.claims import ClaimCheck
from fedlap.reproduce.recipe import Recipe
from fedlap.reproduce.recipe_schema import Claim

VERDICT_PAGE = "README.md"
EXPLAINED_ABOVE = 0.5  # points of difference to the paper above which a recipe should give a reason

INTRODUCTION = """# Results

Do the paper's claims hold? This page answers per claim and data set; each recipe (usually a table or figure
of the paper) has a page with its tables. `fedlap results` writes all pages from the files in `results/`; no
number is entered by hand.

✓ the claim holds · ✗ it does not hold · ? undecided with these seeds · (✓) it holds so far, but some rows
were not run · – not part of the recipe. "R = 5" is read in two ways: as five mini-batches (steps, the paper's
text) and as five passes over a client's rows (epochs, the published code). A cell shows steps / epochs, with
one mark per model on each side of the slash, in the order that the heading of the table gives.
"""
METHOD = """## Method

- Accuracy is pooled over all test rows, after the last round: mean ± standard deviation over seeds. A seed
  determines the split, initial model (zero for MOCHA), sampled clients and batches, equal for all methods.
- The settings of every method (learning rate, strength, …) were chosen by cross-validation on the training
  rows of the same seed. Test rows are never used for tuning, and only scores of the last round are compared.
- *Better* and *worse* are significant in a two-sided paired t-test over seeds (p < 0.05, Holm-corrected per
  claim and cell). *As good*: not significant, with a 95 % interval above −0.5 points. *Undecided*: neither.
- In score tables a number is bold (★) if it is better than every other number of its column by such tests,
  and only if every method of the column was run.
"""
VERDICTS = {
    "holds": "holds for",
    "holds so far": "holds so far (some rows were not run) for",
    "DOES NOT HOLD": "**does not hold** for",
    "undecided": "is undecided for",
}
MARKS = {"holds": "✓", "holds so far": "(✓)", "DOES NOT HOLD": "✗", "undecided": "?"}


@dataclass(frozen=True)
class Deviation:
    """A number that differs from the paper's by more than `EXPLAINED_ABOVE`, and the recipe's reason."""

    reading: str
    cell: str
    row: str
    difference: float
    reason: str | None


def build_results_pages(recipes: Sequence[Recipe], results: ResultFolder) -> dict[str, str]:
    """Return the text of every page by its file name: the verdicts, and one page per recipe with results."""
    shown = [recipe for recipe in recipes if any(True for _ in iterate_cells(recipe, results))]
    shown.sort(key=lambda recipe: recipe.order)
    pages = {f"{recipe.name}.md": _join_blocks(_render_recipe(recipe, results)) for recipe in shown}
    verdicts = [block for recipe in shown for block in _render_verdicts(recipe, results)]
    return {VERDICT_PAGE: _join_blocks([INTRODUCTION, *verdicts, METHOD]), **pages}


def _join_blocks(blocks: Iterator[str] | Sequence[str]) -> str:
    return "\n".join(blocks).rstrip() + "\n"


def _render_verdicts(recipe: Recipe, results: ResultFolder) -> Iterator[str]:
    """Yield a recipe's verdict in one sentence and its table of claims × data sets."""
    yield f"## [{recipe.title}]({recipe.name}.md)\n"
    if recipe.remarks:
        yield f"{_select_first_sentences(recipe.remarks[0])}\n"
    checks = claims.check_claims(recipe, results)
    if not checks:
        return
    variants = list(dict.fromkeys(_split_title(check.title)[1] for check in checks))
    sets = list(dict.fromkeys(_split_title(check.title)[0] for check in checks))
    readings = list(dict.fromkeys(check.reading for check in checks))
    order = f"{' / '.join(readings)}" + (f"; each: {', '.join(variants)}" if len(variants) > 1 else "")
    yield f"| claim ({order}) | {' | '.join(sets)} |"
    yield f"| --- | {' | '.join('---' for _ in sets)} |"
    for claim in recipe.claims:
        marks = {
            (check.reading, *_split_title(check.title)): MARKS[check.verdict]
            for check in checks
            if check.claim is claim
        }
        if marks:
            cells = (_join_marks(marks, readings, name, variants) for name in sets)
            yield f"| {claim.text} | {' | '.join(cells)} |"
    yield ""
    yield from _list_notes(check.claim for check in checks)


def _list_notes(claims_: Iterable[Claim]) -> Iterator[str]:
    """Yield the notes of claims, each with the claims that it belongs to."""
    by_note: dict[str, dict[str, None]] = {}
    for claim in claims_:
        if claim.note:
            by_note.setdefault(" ".join(claim.note.split()), {})[claim.text] = None
    for note, texts in by_note.items():
        yield f"*{'; '.join(texts)}*: {note}\n"


def _join_marks(
    marks: Mapping[tuple[str, str, str], str], readings: Sequence[str], name: str, variants: Sequence[str]
) -> str:
    """Return the marks of a claim on a data set, by reading and variant, or a dash if it has none there."""
    if not any(place[1] == name for place in marks):
        return "–"
    return " / ".join(
        " ".join(marks.get((reading, name, variant), "–") for variant in variants) for reading in readings
    )


def _split_title(title: str) -> tuple[str, str]:
    """Split a cell's title into its data set and its variant, which is the model or the scaling."""
    variant = title.rpartition(", ")[2]
    return title.replace(f", {variant}", ""), variant  # a claim over several cells names two data sets


def _select_first_sentences(text: str, least: int = 60) -> str:
    """Return the first sentence of a text, and the next ones until there are this many characters."""
    first, *rest = " ".join(text.split()).split(". ")
    while rest and len(first) < least:
        first = f"{first}. {rest.pop(0)}"
    return f"{first.rstrip('.')}."


def summarise_claims(recipe: Recipe, results: ResultFolder) -> Iterator[str]:
    """Yield one line per claim and reading: where it holds, where it does not, and by how much."""
    checks = claims.check_claims(recipe, results)
    for claim in recipe.claims:
        for reading in recipe.readings:
            of_claim = [check for check in checks if check.claim is claim and check.reading == reading]
            if of_claim:
                yield f"- {claim.text} ({reading}): {_describe_verdicts(recipe, of_claim)}."
    if checks:
        yield ""


def _describe_verdicts(recipe: Recipe, checks: Sequence[ClaimCheck]) -> str:
    """Return one sentence per verdict, with its cells; the claim before it is the first subject."""
    phrases = []
    for verdict, phrase in VERDICTS.items():
        titles = [f"{c.title}{_describe_losses(recipe, c)}" for c in checks if c.verdict == verdict]
        if titles:
            phrases.append(f"{phrase} {'; '.join(titles)}")
    return ". It ".join(phrases)


def _describe_losses(recipe: Recipe, check: ClaimCheck) -> str:
    """Return the methods that are better, and by how much."""
    worse = [difference for difference in check.against if difference.verdict == "worse"]
    phrases = [f"{recipe.rows[loss.other].title} {loss.difference:+.2f}" for loss in worse]
    if check.spreads:
        names = sorted(check.spreads, key=lambda name: name != check.claim.row)
        phrases = [f"{recipe.rows[name].title} {check.spreads[name]:.2f}" for name in names]
        phrases[0] = f"points from lowest to highest: {phrases[0]}"
    return f" ({', '.join(phrases)})" if phrases else ""


def _render_recipe(recipe: Recipe, results: ResultFolder) -> Iterator[str]:
    """Yield the blocks of a recipe's page: verdicts in words, then all tables."""
    yield f"# {recipe.title}\n"
    yield f"`fedlap reproduce {recipe.name}` · {recipe.place} · [all verdicts]({VERDICT_PAGE})\n"
    yield f"{' '.join(recipe.about.split())}\n"
    verdicts = list(summarise_claims(recipe, results))
    if verdicts or recipe.remarks:
        yield "## Verdicts\n"
        yield from (f"{' '.join(remark.split())}\n" for remark in recipe.remarks)
        yield from verdicts
        yield from _list_notes(recipe.claims if verdicts else ())
    for reading in recipe.readings:
        table = score_table.build_score_table(recipe, results, reading)
        if table is not None:
            yield _render_table(table)
        deviations = [
            deviation for deviation in find_deviations(recipe, results) if deviation.reading == reading
        ]
        if deviations:
            far = f"by more than {EXPLAINED_ABOVE:g} points"
            yield f"Numbers that differ from the paper's {far}, with the reason:\n"
            yield from _list_reasons(recipe, deviations)
            yield ""
    for table in claims.build_claim_tables(recipe, results):
        yield _render_table(table, about=False)
    for reading in recipe.readings:
        chosen = score_table.build_choices_table(recipe, results, reading)
        if chosen is not None:
            yield _render_table(chosen)
            yield from _list_ends(recipe, results, reading)
    missing = list_missing(recipe, results)
    if missing:
        yield f"Not run yet: {'; '.join(missing)}.\n"
    facts = page.build_environment_section(recipe, results).facts
    yield "Environment: " + "; ".join(f"{key} {value}" for key, value in facts) + "."


def _list_ends(recipe: Recipe, results: ResultFolder, reading: str) -> Iterator[str]:
    """Yield the settings that most seeds chose at an end of their range, by cell."""
    cells = results.read_cells(recipe, reading)
    lines = []
    for cell, rows in cells.items():
        ends = [
            f"{recipe.rows[name].title} ({', '.join(settings)})"
            for name, row in rows.items()
            if (settings := score_table.find_usual_ends(row))
        ]
        lines += [f"- {recipe.cells[cell].title}: {'; '.join(ends)}."] if ends else []
    if lines:
        yield "At an end of the range for more than half of the seeds (a wider range could be better):\n"
        yield from lines
        yield ""


def list_missing(recipe: Recipe, results: ResultFolder) -> list[str]:
    """List the cells that were not run, by reading, and the missing rows of the other cells."""
    missing = []
    for reading in recipe.readings:
        cells = [name for name in recipe.cells if not results.read_rows(recipe, name, reading)]
        if cells:
            missing.append(f"{reading}, all of {', '.join(cells)}")
        for name, cell in recipe.cells.items():
            rows = results.read_rows(recipe, name, reading)
            left = [row for row in recipe.rows if row not in rows and row not in cell.without]
            if rows and left:
                missing.append(f"{reading}, of {name} {', '.join(left)}")
    return missing


def _render_table(table: TableSection, about: bool = True) -> str:
    """Format a table under its heading; the page of verdicts explains what all tables share."""
    body = render_markdown(replace(table, title="", about=table.about if about else "", footer=""))
    return f"## {table.title}\n\n{body.strip()}\n"


def find_deviations(recipe: Recipe, results: ResultFolder) -> list[Deviation]:
    """Find the numbers far from the paper's, with the recipe's reason or None."""
    deviations = []
    for reading, cell, rows in iterate_cells(recipe, results):
        for name, row in rows.items():
            difference = _compute_difference(recipe, cell, name, row)
            if difference is not None and abs(difference) > EXPLAINED_ABOVE:
                reason = _find_reason(recipe, reading, cell, name, difference)
                deviations.append(Deviation(reading, cell, name, difference, reason))
    return deviations


def _compute_difference(recipe: Recipe, cell: str, name: str, row: RowResult) -> float | None:
    paper = recipe.cells[cell].paper.get(name)
    return None if paper is None or not row.finished else float(row.accuracy.mean()) - paper[0]


def _find_reason(recipe: Recipe, reading: str, cell: str, row: str, difference: float) -> str | None:
    """Return the recipe's first reason that covers this number."""
    for reason in recipe.reasons:
        if (
            (not reason.readings or reading in reason.readings)
            and (not reason.cells or cell in reason.cells)
            and (not reason.rows or row in reason.rows)
            and reason.side in ("either", "above" if difference > 0 else "below")
        ):
            return " ".join(reason.text.split())
    return None


def _list_reasons(recipe: Recipe, deviations: Sequence[Deviation]) -> Iterator[str]:
    """Yield one line per reason, with the numbers that it explains."""
    by_reason: dict[str | None, list[Deviation]] = {}
    for deviation in deviations:
        by_reason.setdefault(deviation.reason, []).append(deviation)
    for reason, explained in by_reason.items():
        names = "; ".join(
            f"{recipe.cells[item.cell].title}: {recipe.rows[item.row].title} {item.difference:+.2f}"
            for item in explained
        )
        yield f"- {names}. {reason or 'NOT EXPLAINED.'}"
