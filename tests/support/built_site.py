"""The documentation site, built as `make docs` builds it, and its pages as lists of links."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "docs"
LOADING = {  # attributes whose address a browser loads
    "audio": "src", "embed": "src", "iframe": "src", "img": "src", "link": "href", "object": "data",
    "script": "src", "source": "src", "video": "src",
}  # fmt: skip


@cache
def build_once():
    """Build the site, once per process; return the exit code and the warnings, or all output if it fails.

    Kernels that execute notebooks write remarks to standard error, which are no warnings of Sphinx.
    """
    FOLDER.parent.mkdir(exist_ok=True)
    warnings = FOLDER.parent / "docs-warnings.txt"
    words = [
        "-W",
        "--keep-going",
        "-n",
        "-q",
        "-w",
        str(warnings),
        "-b",
        "html",
        str(ROOT / "docs"),
        str(FOLDER),
    ]
    with FileLock(FOLDER.parent / "docs.lock"):
        done = subprocess.run(
            [sys.executable, "-m", "sphinx", *words],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        text = warnings.read_text("utf-8") if done.returncode == 0 else done.stdout + done.stderr
    return done.returncode, text


@pytest.fixture(scope="session", name="site")
def build_site():
    """The folder of the site; a warning of Sphinx is an error. Pages that did not change stay."""
    assert build_once() == (0, "")
    return FOLDER


@dataclass
class Page(HTMLParser):
    """The links of a page, the addresses that it loads, and the names of its places."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)

    def __post_init__(self):
        super().__init__()

    @staticmethod
    def read(path):
        page = Page()
        page.feed(path.read_text("utf-8"))
        return page

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if values.get(LOADING.get(tag, "")):
            self.loaded.append(values[LOADING[tag]])
        self.places |= {values[name] for name in ("id", "name") if values.get(name)}
