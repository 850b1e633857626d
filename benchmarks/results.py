"""Write the sections of RESULTS.md, one per benchmark or machine."""

import datetime
import platform
import re
from collections.abc import Sequence
from pathlib import Path

import torch

HEAD = "# Benchmark results\n\nBenchmarks write these sections; no number is edited by hand.\n"


def write_section(
    path: Path, kind: str, about: str, headers: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Replace the section of this kind, or append it."""
    cells = [list(headers), ["---"] * len(headers), *rows]
    table = "\n".join("| " + " | ".join(cell or " " for cell in row) + " |" for row in cells)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    section = f"<!-- {kind} -->\n## {kind}\n\n{today}, {versions}; {about}\n\n{table}\n<!-- /{kind} -->"
    text = path.read_text(encoding="utf-8") if path.exists() else HEAD
    old = re.compile(rf"<!-- {re.escape(kind)} -->.*<!-- /{re.escape(kind)} -->", re.DOTALL)
    text = old.sub(lambda _: section, text) if old.search(text) else f"{text}\n{section}\n"
    path.write_text(text, encoding="utf-8")
