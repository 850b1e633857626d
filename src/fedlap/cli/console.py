"""Where results and remarks are printed."""

from rich.console import Console

out = Console()
err = Console(stderr=True)


def result(text: str) -> None:
    """A line of results."""
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def remark(text: str) -> None:
    """A line beside the results."""
    err.print(text, highlight=False, markup=False, soft_wrap=True)
