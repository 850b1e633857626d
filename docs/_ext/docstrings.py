"""Docstrings of fedlap as text for Sphinx: equations stay as they are, and `name: text` is a setting."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

FIELD = re.compile(r"(\.?\w+(?:, \w+)*): (.*)")
CODE = re.compile(r"`([^`]+)`")


def split_blocks(text: str) -> list[list[str]]:
    """Return the lines of each paragraph."""
    return [block.split("\n") for block in re.split(r"\n\s*\n", text.strip()) if block.strip()]


def is_equation(block: list[str]) -> bool:
    """Return whether the lines of a block are aligned or indented, so that their spaces matter."""
    return all(line.startswith("    ") for line in block) or any("   " in line.strip() for line in block)


def read_fields(block: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the description of each name, and the lines after these; no names where the block is prose."""
    fields: dict[str, str] = {}
    rest: list[str] = []
    for line in block:
        found = FIELD.fullmatch(line)
        if found is not None and not rest:
            names, first = found.groups()
            fields[names] = first
        elif line.startswith("    ") and fields and not rest:
            fields[names] += f" {line.strip()}"
        else:
            rest.append(line)
    return (fields, rest) if len(fields) > bool(rest) else ({}, block)


def describe_settings(documented: Callable[..., Any]) -> dict[str, str]:
    """Return the description of each setting in a docstring, by the setting's name."""
    described: dict[str, str] = {}
    for block in split_blocks(inspect.getdoc(documented) or ""):
        if not is_equation(block):
            for names, text in read_fields(block)[0].items():
                described |= dict.fromkeys(names.split(", "), text)
    return described


def to_restructured_text(text: str, link: Callable[[str], str | None]) -> Iterator[str]:
    """Yield the lines of a docstring as reStructuredText.

    link: the full name of a public object that a name in backticks stands for, or None.
    """

    def escape(prose: str) -> str:
        """Return prose without marks of reStructuredText; names in backticks become code or links."""
        parts = CODE.split(prose)
        parts[::2] = [re.sub(r"([\\*_|`])", r"\\\1", part) for part in parts[::2]]
        parts[1::2] = [mark_code(name) for name in parts[1::2]]
        return "".join(parts)

    def mark_code(name: str) -> str:
        target = link(name)
        return f"``{name}``" if target is None else f":py:obj:`{name} <{target}>`"

    for block in split_blocks(text):
        if is_equation(block):
            yield from ("::", "", *(f"    {line}" for line in block))
        else:
            fields, prose = read_fields(block)
            for names, described in fields.items():
                yield ", ".join(f"``{name}``" for name in names.split(", "))
                yield f"    {escape(described)}"
            yield ""
            yield from map(escape, prose)
        yield ""
