"""Pieces of Markdown that generated pages share."""

import re
from collections.abc import Sequence

CODE = re.compile(r"`([^`]+)`")


def escape(prose: str) -> str:
    """Return prose without marks of Markdown, in one line; names in backticks stay code."""
    parts = CODE.split(" ".join(prose.split()))
    parts[::2] = [re.sub(r"([\\*_|<$\[\]])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [code(name) for name in parts[1::2]]
    return "".join(parts)


def code(text: str) -> str:
    """Return text as code, also within a table."""
    return f"`{text}`".replace("|", "\\|")


def build_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; cells are Markdown."""
    lines = [list(heads), ["---"] * len(heads), *map(list, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
