"""Files that all figures share: facts, images that suit light and dark pages, and tables in pages.

A script computes facts, which are plain values, and stores them in docs/figures/facts. Its image and its
tables use the stored facts alone:

    python docs/figures/NAME.py           compute, store and draw
    python docs/figures/NAME.py --draw    draw the stored facts again
"""

import argparse
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
from matplotlib.figure import Figure

FIGURES = Path(__file__).parent
DOCS = FIGURES.parent
Facts = Mapping[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[str]]] | str  # headers and rows, or lines as they are
Tables = Mapping[tuple[str, str], Table]  # by page and name

INK, PAPER, FAINT = "#26282b", "#ffffff", "#c9ccd1"  # of text, background, and lines behind the data
DARK = {INK: "#d5d7da", PAPER: "#131416", FAINT: "#4a4d52"}  # the same on a dark page
BLUE, ORANGE, GREEN, PURPLE, GREY = "#3a7ad0", "#dd7d2a", "#2a9a6b", "#9a63c7", "#85898f"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "fedlap", "font.family": ["DejaVu Sans"], "font.size": 9.0,
    "figure.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.facecolor": PAPER, "text.color": INK,
    "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10.0, "axes.titleweight": "bold",
    "axes.linewidth": 0.8, "legend.frameon": False, "legend.labelcolor": INK, "lines.linewidth": 1.6,
}  # fmt: skip


def run_script(
    name: str,
    compute: Callable[[], Facts],
    draw: Callable[[Facts], Figure | str],
    tables: Callable[[Facts], Tables] = lambda facts: {},
) -> None:
    """Compute and store the facts of a figure, or load them with --draw; draw them and write their tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draw", action="store_true", help="draw the stored facts, compute nothing")
    if not parser.parse_args().draw:
        text = json.dumps(compute(), ensure_ascii=False)
        (FIGURES / "facts").mkdir(exist_ok=True)
        locate_facts(name).write_text(f"{text}\n", encoding="utf-8")
    facts = load_facts(name)
    with mpl.rc_context(STYLE):
        locate_image(name).write_text(render_svg(draw(facts), name), encoding="utf-8")
    for (page, mark), table in tables(facts).items():
        path = DOCS / page
        path.write_text(replace_table(path.read_text("utf-8"), mark, table), encoding="utf-8")


def locate_facts(name: str) -> Path:
    """Return the file with the facts of a figure."""
    return FIGURES / "facts" / f"{name}.json"


def locate_image(name: str) -> Path:
    """Return the image of a figure."""
    return DOCS / "images" / f"{name}.svg"


def load_facts(name: str) -> Facts:
    """Load the stored facts of a figure."""
    facts: Facts = json.loads(locate_facts(name).read_text("utf-8"))
    return facts


def compute_digest(name: str) -> str:
    """Return the digest of the facts of a figure, which its image names."""
    return hashlib.sha256(locate_facts(name).read_bytes()).hexdigest()[:16]


def render_svg(figure: Figure | str, name: str) -> str:
    """Return a figure as SVG with colours for light and dark pages, and the digest of its facts."""
    if isinstance(figure, Figure):
        file = StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
        figure = file.getvalue().replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    rules = " ".join(
        f'[style*="{kind}: {light}"], [{kind}="{light}"] {{ {kind}: {dark} !important }}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark) {{ {rules} }}</style>"
    style = f"<!-- facts: {compute_digest(name)} -->{style}"
    text = re.sub(r"(<svg\b[^>]*>)", lambda start: f"{start[1]}\n {style}", figure, count=1)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def render_table(table: Table) -> str:
    """Return a table as Markdown."""
    if isinstance(table, str):
        return "\n".join(["```text", table, "```"])
    headers, rows = table
    cells = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def replace_table(page: str, name: str, table: Table) -> str:
    """Return a page with the table between its marks replaced."""
    begin, end = f"<!-- table: {name} -->", f"<!-- /table: {name} -->"
    if begin not in page or end not in page:
        raise ValueError(f"the page has no marks {begin} and {end}")
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{render_table(table)}\n\n{end}{rest.split(end)[1]}"
