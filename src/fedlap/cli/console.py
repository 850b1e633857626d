"""Where results and remarks are printed, with control characters made visible."""

import re
import sys
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment
from rich.text import Text

# Control characters, marks that reverse the direction of text, and bytes of a path that are not UTF-8:
# a terminal obeys them, and no file may command a user's terminal.
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with every control character but line ends and tabs as an escape, as in \\x1b."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class Console(rich.console.Console):
    """A console that shows control characters of the printed text, and sends only its own to the terminal.

    Text is printed as it is: "[red]" or ":bug:" in somebody's label is neither a colour nor a picture.
    """

    def __init__(self, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **how: Any) -> Text:
        """Text without control characters, so that columns are as wide as what is shown in them."""
        return super().render_str(visible(text), **how)

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Segments of text without control characters; those that move the cursor are rich's own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


out = Console()
err = Console(stderr=True)


def result(text: str) -> None:
    """Print a line of results."""
    out.print(one_line(text), soft_wrap=True)


def remark(text: str) -> None:
    """Print a line beside the results."""
    err.print(one_line(text), soft_wrap=True)


def data(text: str) -> None:
    """Print text for other programs: unchanged, unless a terminal reads it."""
    print(visible(text) if sys.stdout is not None and sys.stdout.isatty() else text, end="")


def one_line(text: str) -> str:
    """The text with line ends as escapes: a line must not look like two."""
    return "\\n".join(visible(text).splitlines())
