"""Pages of docs/gallery: each script is a page with its text, its figure and its code.

The docstring of a script is the text of its page: a title, paragraphs, and a last paragraph that begins
with "Figure:", which is the caption of the figure and its alternative text. The scripts run when the site
is built. Their figures are cached by the content of the script; remove build/gallery after a change of the
library.
"""

import ast
import hashlib
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

INK, PAPER = "#1b1f23", "#ced6dd"  # text and axes of figures in light and in dark mode
ROOT = Path(__file__).resolve().parents[2]
FRAME = ["text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color"]


class Script(NamedTuple):
    """The parts of a script of the gallery."""

    path: Path
    title: str
    paragraphs: list[str]
    caption: str
    first_line: int  # of the code below the docstring

    @property
    def figures(self) -> Path:
        """The folder of its figures, which depends on the content of the script and of this file."""
        digest = hashlib.sha256(self.path.read_bytes() + Path(__file__).read_bytes()).hexdigest()
        return ROOT / "build" / "gallery" / f"{self.path.stem}-{digest[:16]}"

    def show_figure(self) -> str:
        """Return the Markdown of the figure in light and dark mode."""
        folder = os.path.relpath(self.figures, self.path.parent)
        alt = " ".join(self.caption.split())
        return "\n".join(
            f"```{{image}} {folder}/{self.path.stem}-{mode}.svg\n:alt: {alt}\n:class: only-{mode}\n```\n"
            for mode in ("light", "dark")
        )

    def build_page(self) -> str:
        """Return the Markdown of the page."""
        name = self.path.name
        code = f"```{{literalinclude}} {name}\n:language: python\n:lines: {self.first_line}-\n```"
        parts = [f"# {self.title}", *self.paragraphs, self.show_figure(), f"*{self.caption}*", code]
        return "\n\n".join([*parts, f"{{download}}`Download this script <{name}>`\n"])


def read_script(path: Path) -> Script:
    """Return the parts of a script."""
    tree = ast.parse(path.read_text("utf-8"))
    title, *paragraphs, figure = ast.get_docstring(tree).split("\n\n")
    if not figure.startswith("Figure: "):
        raise ValueError(f"{path}: the last paragraph of the docstring must begin with 'Figure: '")
    caption = figure.removeprefix("Figure: ").strip()
    return Script(path, title.rstrip("."), paragraphs, caption[0].upper() + caption[1:], tree.body[1].lineno)


def draw_figures(script: Script) -> None:
    """Run a script in an empty folder and write its figure for light and for dark mode."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(dict.fromkeys(FRAME, INK) | {"legend.frameon": False, "svg.hashsalt": "fedlap"})
    import matplotlib.pyplot as plt

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        runpy.run_path(str(script.path), run_name="__main__")
        plt.savefig("figure.svg", transparent=True, metadata={"Date": None})
        plt.close("all")
        light = Path("figure.svg").read_text("utf-8")
        os.chdir(ROOT)
    script.figures.mkdir(parents=True, exist_ok=True)
    for mode, text in (("light", light), ("dark", light.replace(INK, PAPER))):
        (script.figures / f"{script.path.stem}-{mode}.svg").write_text(text, "utf-8")


def is_drawn(script: Script) -> bool:
    """Return whether the figures of this script are cached."""
    return (script.figures / f"{script.path.stem}-dark.svg").exists()


def run_scripts(app: Any) -> None:
    """Run all scripts without cached figures, in one process."""
    from sphinx.errors import ExtensionError

    paths = sorted(Path(app.srcdir, "gallery").glob("*.py"))
    missing = [str(path) for path in paths if not is_drawn(read_script(path))]
    if missing:
        environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, __file__, *missing], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise ExtensionError(f"a script of the gallery failed\n{done.stderr}")


def write_page(app: Any, name: str, source: list[str]) -> None:
    """Replace the text of a script by its page."""
    path = Path(app.env.doc2path(name))
    if path.suffix == ".py":
        source[0] = read_script(path).build_page()


def setup(app: Any) -> dict[str, Any]:
    """Register scripts as pages, and the directive that lists them as cards."""
    from sphinx.util.docutils import SphinxDirective

    class Gallery(SphinxDirective):
        """Cards of the scripts that the directive lists, and their table of contents."""

        has_content: ClassVar = True

        def run(self) -> list[Any]:
            folder = Path(self.env.doc2path(self.env.docname)).parent
            scripts = [read_script(folder / line.strip()) for line in self.content if line.strip()]
            listed, found = {s.path for s in scripts}, set(folder.glob("*.py"))
            if listed != found:
                raise self.error(f"not listed: {sorted(path.name for path in found - listed)}")
            cards = [
                f"`````{{grid-item-card}} {script.title}\n:link: {script.path.stem}\n:link-type: doc\n\n"
                f"{script.show_figure()}\n`````"
                for script in scripts
            ]
            names = "\n".join(script.path.stem for script in scripts)
            text = "\n".join(["``````{grid} 1 2 2 3", ":gutter: 3", "", *cards, "``````"])
            return self.parse_text_to_nodes(f"{text}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n")

    app.add_directive("gallery", Gallery)
    app.add_source_suffix(".py", "myst-nb")
    app.connect("config-inited", lambda app, config: config.exclude_patterns.extend(["conf.py", "_ext"]))
    app.connect("builder-inited", run_scripts)
    app.connect("source-read", write_page)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        draw_figures(read_script(Path(argument)))
