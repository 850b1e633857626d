"""Settings of the documentation site; `make docs` builds it."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
BUILD = DOCS.parent / "build"
sys.path[:0] = [str(DOCS / "_ext")]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # notebooks are executed two at a time

from sphinx.application import Sphinx  # noqa: E402

from fedlap import __version__  # noqa: E402

project, author = "fedlap", "the fedlap developers"
version = release = __version__
project_copyright = "the fedlap developers, Apache-2.0"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
    "gallery",
    "generated_pages",
    "katex",
    "public_names",
    "repository_links",
    "shown_text",
]
exclude_patterns = ["README.md", "_static", "figures"]
nitpicky = True
# Types of Python and of other packages, whose documentation cannot be looked up offline.
nitpick_ignore_regex = [
    (
        "py:class",
        r"(collections\.abc|jaxtyping|matplotlib|networkx|numpy|pandas|pathlib|scipy|torch)\..*"
        r"|DataFrame|Figure|Tensor|ndarray",
    )
]

# Pages are Markdown; a heading's anchor is the one that file viewers derive from it.
myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / "notebooks")
nb_execution_raise_on_error = True
nb_execution_timeout = 120  # seconds per cell
nb_merge_streams = True
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # nothing is loaded from elsewhere

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

smartquotes = False

html_theme = "furo"
html_title = f"fedlap {version}"
html_logo = html_favicon = "_static/logo.svg"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5cad", "color-brand-content": "#0b5cad"},
    "dark_css_variables": {"color-brand-primary": "#7db7f2", "color-brand-content": "#7db7f2"},
}
html_static_path = ["_static"]
html_css_files = ["fedlap.css"]
html_js_files = ["offline_search.js"]
html_copy_source = False
html_show_sphinx = False
html_search_scorer = str(DOCS / "_static" / "search_scorer.js")
html_math_renderer = "katex"


def list_results(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the pages of results, which `fedlap results` writes, below their first page."""
    if page == "results/README":
        source[0] += "\n```{toctree}\n:glob:\n:hidden:\n*\n```\n"


def setup(app: Sphinx) -> None:
    """Connect the function above."""
    app.connect("source-read", list_results)
