"""Tables as Markdown, CSV and LaTeX."""

import csv
import io
import math
from collections.abc import Iterable

from fedlap.report.page.sections import Records, RecordValue, TableCell, TableSection

PAPER_PREFIX = "paper "  # of notes with the paper's number
MARK = "★"

# Characters that LaTeX interprets, or has no glyph for.
LATEX_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "·": r"$\cdot$",
    "≤": r"$\le$", "≥": r"$\ge$", "→": r"$\to$", "∞": r"$\infty$", "–": "--", "—": "---", "…": r"\dots{}",
    "★": r"$\star$", "α": r"$\alpha$", "β": r"$\beta$", "η": r"$\eta$", "λ": r"$\lambda$", "μ": r"$\mu$",
    "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$", "₁": "$_1$", "₂": "$_2$", "²": "$^2$",
    "\n": " ",
}  # fmt: skip


def render_markdown(table: TableSection) -> str:
    """Render a table as Markdown: best cells bold, muted cells in italics, notes in parentheses."""
    lines = [
        list(map(_escape_pipes, table.columns)),
        ["---"] + ["---:"] * (len(table.columns) - 1),
        *([_format_markdown_cell(cell) for cell in row] for row in table.rows),
    ]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = [table.title, table.about, text, table.footer]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_csv(records: Records) -> str:
    """Render records as CSV with full precision; missing values are empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(records.columns)
    writer.writerows([_format_value(value) for value in row] for row in records.rows)
    return file.getvalue()


def _format_value(value: RecordValue) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value if isinstance(value, str) else repr(value)


def render_latex(table: TableSection) -> str:
    """Render a table as LaTeX with booktabs: best cells bold, notes in separate columns."""
    heads = _name_note_columns(table)
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
        _format_latex_row(map(escape_latex, names)),
        r"\midrule",
        *(_format_latex_row(_format_latex_cells(row, heads)) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(LATEX_ESCAPES.get(character, character) for character in text)


def _name_note_columns(table: TableSection) -> list[str | None]:
    """Return the header of the notes column of each column; None without notes."""
    heads: list[str | None] = []
    for place in range(len(table.columns)):
        notes = [row[place].note for row in table.rows if row[place].note]
        heads.append(
            ("paper" if all(n.startswith(PAPER_PREFIX) for n in notes) else "note") if notes else None
        )
    return heads


def _format_note(cell: TableCell, head: str) -> str:
    return cell.note.removeprefix(PAPER_PREFIX) if head == "paper" else cell.note


def _format_markdown_cell(cell: TableCell) -> str:
    text = _escape_pipes(cell.text)
    text = f"**{text}** {MARK}" if cell.best else f"*{text}*" if cell.muted and text else text
    return f"{text} ({_escape_pipes(cell.note)})" if cell.note else text


def _escape_pipes(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _format_latex_cells(row: list[TableCell], heads: list[str | None]) -> Iterable[str]:
    for cell, head in zip(row, heads, strict=True):
        text = escape_latex(cell.text)
        yield f"\\textbf{{{text}}}" if cell.best else f"\\textit{{{text}}}" if cell.muted and text else text
        if head is not None:
            yield escape_latex(_format_note(cell, head))


def _format_latex_row(cells: Iterable[str]) -> str:
    return f"{' & '.join(cells)} \\\\"
