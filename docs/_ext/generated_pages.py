"""Tables of the reference that are computed at build, in the place of `<!-- generated: NAME -->`."""

import re
from typing import Any

from sphinx.application import Sphinx

import command_reference
import settings_reference
from docstrings import describe_settings
from fedlap.cli.exit_codes import EXIT_CODES
from fedlap.training.scores import Score
from markdown_text import build_table, code, escape

MARK = re.compile(r"<!-- generated: ([\w-]+) -->")


def build_exit_codes() -> str:
    """Return the table of exit codes."""
    rows = [[str(int(code)), escape(text.meaning), escape(text.advice)] for code, text in EXIT_CODES.items()]
    return build_table(["code", "meaning", "what to do"], rows)


def build_score_fields() -> str:
    """Return the table of the fields of a score."""
    rows = [[code(name), escape(text)] for name, text in describe_settings(Score).items()]
    return build_table(["field", "meaning"], rows)


BUILDERS = {
    "commands": command_reference.build_page,
    "exit-codes": build_exit_codes,
    "plan": settings_reference.build_plan,
    "score-fields": build_score_fields,
    "settings": settings_reference.build_page,
}


def insert_tables(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the text in the place of its mark."""
    source[0] = MARK.sub(lambda mark: BUILDERS[mark[1]](), source[0])


def list_changed(app: Sphinx, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Return the pages that are read again in every build, since their sources are not files."""
    return [page for page in env.all_docs if MARK.search(env.doc2path(page).read_text("utf-8"))]


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions above."""
    app.connect("source-read", insert_tables)
    app.connect("env-get-outdated", list_changed)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
