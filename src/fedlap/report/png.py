"""Figures as PNG bytes, drawn without a screen. Matplotlib loads with the first figure: few commands draw."""

import io
import warnings
from typing import Any


def create_figure(*size: int, **options: Any) -> tuple[Any, Any]:
    """Create a figure and its axes with the arguments of `pyplot.subplots`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(*size, **options)


def render_png(figure: Any, powers: bool = False) -> bytes:
    """Render a figure as PNG and close it; letters that the font lacks raise no warning.

    Dollar signs in names are plain text, unless `powers`: powers of ten on an axis need math mode.
    """
    from matplotlib import pyplot
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(powers)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format="png", dpi=120)
    pyplot.close(figure)
    return buffer.getvalue()
