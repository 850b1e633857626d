"""Formulas by KaTeX, from files of the site alone."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

FILES = ("katex/katex.min.js", "render_formulas.js")


def visit_formula(translator: Any, node: nodes.math) -> None:
    """Write a formula in a line of text; without scripts, the reader sees its source."""
    translator.body.append(f'<span class="formula">{translator.encode(node.astext())}</span>')
    raise nodes.SkipNode


def visit_display(translator: Any, node: nodes.math_block) -> None:
    """Write a formula in a paragraph of its own."""
    translator.body.append(translator.starttag(node, "div", CLASS="formula-block"))
    if node["number"]:
        translator.body.append(f'<span class="formula-number">({node["number"]})</span>')
        translator.add_permalink_ref(node, "Link to this equation")
    translator.body.append(f'<div class="formula display">{translator.encode(node.astext())}</div></div>\n')
    raise nodes.SkipNode


def add_files(app: Sphinx, page: str, template: str, context: Any, document: nodes.document | None) -> None:
    """Load KaTeX on pages that have formulas."""
    if document is not None and next(document.findall(lambda n: isinstance(n, FORMULAS)), None) is not None:
        app.add_css_file("katex/katex.min.css")
        for file in FILES:
            app.add_js_file(file, loading_method="defer")


FORMULAS = (nodes.math, nodes.math_block)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer."""
    app.add_html_math_renderer("katex", (visit_formula, None), (visit_display, None))
    app.connect("html-page-context", add_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
