"""A table as Markdown, CSV and LaTeX."""

import csv
import io
import math
from collections.abc import Iterable

from fedlap.report.page.sections import Cell, Records, TableSection, Value

PAPER = "paper "  # what a note begins with that is the paper's number
MARK = "★"

# What LaTeX reads as something else, or has no letter for.
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "·": r"$\cdot$",
    "≤": r"$\le$", "≥": r"$\ge$", "→": r"$\to$", "∞": r"$\infty$", "–": "--", "—": "---", "…": r"\dots{}",
    "★": r"$\star$", "α": r"$\alpha$", "β": r"$\beta$", "η": r"$\eta$", "λ": r"$\lambda$", "μ": r"$\mu$",
    "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$", "₁": "$_1$", "₂": "$_2$", "²": "$^2$",
    "\n": " ",
}  # fmt: skip


def markdown(table: TableSection) -> str:
    """For a page: the best in bold, the left-out in italics, notes in brackets behind."""
    lines = [
        list(map(_pipes, table.columns)),
        ["---"] + ["---:"] * (len(table.columns) - 1),
        *([_marked(cell) for cell in row] for row in table.rows),
    ]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = [table.title, table.about, text, table.footer]
    return "\n\n".join(part for part in parts if part) + "\n"


def comma_separated(records: Records) -> str:
    """For other programs: one line of names, numbers to the last digit, nothing where a value is missing."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(records.columns)
    writer.writerows([_plain(value) for value in row] for row in records.rows)
    return file.getvalue()


def _plain(value: Value) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value if isinstance(value, str) else repr(value)


def latex(table: TableSection) -> str:
    """For a paper, with the package booktabs: the best in bold, notes in a column of their own."""
    heads = _noted(table)
    kinds = ["l" if place == 0 else "r" if head is None else "rr" for place, head in enumerate(heads)]
    names = [
        name
        for column, head in zip(table.columns, heads, strict=True)
        for name in ([column] if head is None else [column, head])
    ]
    lines = [
        f"% {' '.join(table.title.split())}; needs \\usepackage{{booktabs}}",
        f"\\begin{{tabular}}{{{''.join(kinds)}}}",
        r"\toprule",
        _line(map(escaped, names)),
        r"\midrule",
        *(_line(_latex_cells(row, heads)) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text as LaTeX, in which every sign stands for itself."""
    return "".join(LATEX.get(sign, sign) for sign in text)


def _noted(table: TableSection) -> list[str | None]:
    """For each column what a column of its notes is called; None where it has none."""
    heads: list[str | None] = []
    for place in range(len(table.columns)):
        notes = [row[place].note for row in table.rows if row[place].note]
        heads.append(("paper" if all(n.startswith(PAPER) for n in notes) else "note") if notes else None)
    return heads


def _note(cell: Cell, head: str) -> str:
    return cell.note.removeprefix(PAPER) if head == "paper" else cell.note


def _marked(cell: Cell) -> str:
    text = _pipes(cell.text)
    text = f"**{text}** {MARK}" if cell.best else f"*{text}*" if cell.muted and text else text
    return f"{text} ({_pipes(cell.note)})" if cell.note else text


def _pipes(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _latex_cells(row: list[Cell], heads: list[str | None]) -> Iterable[str]:
    for cell, head in zip(row, heads, strict=True):
        text = escaped(cell.text)
        yield f"\\textbf{{{text}}}" if cell.best else f"\\textit{{{text}}}" if cell.muted and text else text
        if head is not None:
            yield escaped(_note(cell, head))


def _line(cells: Iterable[str]) -> str:
    return f"{' & '.join(cells)} \\\\"
