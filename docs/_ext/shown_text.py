"""Text as pages show it: commands in colour, scores in one line, and warnings without temporary paths."""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform

COMMANDS = re.compile(r"(?:fedlap|make|pip|python3?|\. \.venv) ")
SPACES = re.compile(r" (?=[±★])|(?<=±) ")
MARKS = re.compile(r"[✓✗?–()/ ]+")
WARNING = re.compile(r"^\S*ipykernel_\d+/\d+\.py:\d+: (?=\w+: )(.*)\n(?:  .*\n?)?", re.M)
NO_BREAK = "\N{NO-BREAK SPACE}"


class BlockLanguages(SphinxTransform):
    """Highlights blocks without a language: as commands of a shell, or not at all."""

    default_priority = 100

    def apply(self, **options: Any) -> None:
        """Set the language of these blocks."""
        for block in self.document.findall(nodes.literal_block):
            if block.get("language", "default") in ("default", "none", ""):
                block["language"] = "bash" if COMMANDS.match(block.astext()) else "text"


class TableCells(SphinxTransform):
    """Keeps a score and its deviation, and the marks of a verdict, in one line."""

    default_priority = 101

    def apply(self, **options: Any) -> None:
        """Replace spaces in the cells of tables."""
        for entry in self.document.findall(nodes.entry):
            for text in list(entry.findall(nodes.Text)):
                whole = text.astext()
                shown = SPACES.sub(NO_BREAK, whole)
                if MARKS.fullmatch(whole):
                    shown = whole.replace(" ", NO_BREAK)
                if shown != whole:
                    text.parent.replace(text, nodes.Text(shown))


class WarningPaths(SphinxPostTransform):
    """Shows a warning in the output of a notebook without the path and the line of its cell."""

    default_priority = 100

    def run(self, **options: Any) -> None:
        """Replace the text of these outputs."""
        for block in list(self.document.findall(nodes.literal_block)):
            if WARNING.search(block.astext()):
                text = WARNING.sub(r"\1\n", block.astext())
                shown = nodes.literal_block(text, text, language="text", classes=["stderr"])
                block.replace_self(shown)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transforms."""
    for transform in (BlockLanguages, TableCells):
        app.add_transform(transform)
    app.add_post_transform(WarningPaths)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
