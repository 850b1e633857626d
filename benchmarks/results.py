"""Write the sections of RESULTS.md, one per benchmark or machine."""

import datetime
import platform
import re
from collections.abc import Sequence
from pathlib import Path

import torch

HEAD = "# Benchmark results\n\nBenchmarks write these sections; no number is edited by hand.\n"


def describe_versions() -> str:
    """Return the versions of Python and PyTorch here."""
    return f"Python {platform.python_version()}, torch {torch.__version__}"


def write_section(
    path: Path,
    kind: str,
    about: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    versions: str | None = None,
) -> None:
    """Replace the section of this kind, or append it.

    versions: of the machines that measured the rows; by default those of this one.
    """
    cells = [list(headers), ["---"] * len(headers), *rows]
    table = "\n".join("| " + " | ".join(cell or " " for cell in row) + " |" for row in cells)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    facts = f"{today}, {versions or describe_versions()}; {about}"
    section = f"<!-- {kind} -->\n## {kind}\n\n{facts}\n\n{table}\n<!-- /{kind} -->"
    text = path.read_text(encoding="utf-8") if path.exists() else HEAD
    old = re.compile(rf"<!-- {re.escape(kind)} -->.*<!-- /{re.escape(kind)} -->", re.DOTALL)
    text = old.sub(lambda _: section, text) if old.search(text) else f"{text}\n{section}\n"
    path.write_text(text, encoding="utf-8")
