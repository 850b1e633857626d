"""Printing of results and remarks, with control characters escaped."""

import re
import sys
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment
from rich.text import Text

# Control characters, marks that reverse the direction of text, and bytes of a path that are not UTF-8:
# a terminal obeys them, and no file may command a user's terminal.
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_control_characters(text: str) -> str:
    """Escape every control character except line ends and tabs, as in \\x1b."""
    return CONTROL_CHARACTERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class Console(rich.console.Console):
    """A console that escapes control characters in text; only rich's own reach the terminal.

    Text is printed literally: "[red]" or ":bug:" in a label is neither a colour nor an emoji.
    """

    def __init__(self, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **how: Any) -> Text:
        """Return text without control characters, so that columns have the width of the printed text."""
        return super().render_str(escape_control_characters(text), **how)

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return segments without control characters; segments that move the cursor are rich's own."""
        for segment in super().render(renderable, options):
            yield (
                segment if segment.control else segment._replace(text=escape_control_characters(segment.text))
            )


out = Console()
err = Console(stderr=True)


def print_result(text: str) -> None:
    """Print a line of results to standard output."""
    out.print(escape_line_ends(text), soft_wrap=True)


def print_remark(text: str) -> None:
    """Print a line that is not a result to standard error."""
    err.print(escape_line_ends(text), soft_wrap=True)


def print_raw(text: str) -> None:
    """Print text for other programs, unchanged unless standard output is a terminal."""
    print(escape_control_characters(text) if sys.stdout is not None and sys.stdout.isatty() else text, end="")


def escape_line_ends(text: str) -> str:
    """Escape line ends, so that one message is one line."""
    return "\\n".join(escape_control_characters(text).splitlines())
