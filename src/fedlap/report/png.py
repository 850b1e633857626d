"""Figures, and their PNG bytes, drawn without a screen. Matplotlib loads with the first figure."""

import io
import warnings
from typing import Any, Literal

Layout = Literal["constrained"]


def create_figure(
    rows: int = 1,
    columns: int = 1,
    *,
    figsize: tuple[float, float],
    layout: Literal["constrained"],
    **options: Any,
) -> tuple[Any, Any]:
    """Create a figure that pyplot does not know, and its axes, with the options of `Figure.subplots`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=figsize, layout=layout)
    return figure, figure.subplots(rows, columns, **options)


def render_png(figure: Any, powers: bool = False) -> bytes:
    """Render a figure as PNG; letters that the font lacks raise no warning.

    Dollar signs in names are plain text, unless `powers`: powers of ten on an axis need math mode.
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(powers)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()
