"""Figures, drawn without a screen, as bytes. Matplotlib is loaded with the first: few commands draw any."""

import io
import warnings
from typing import Any


def blank(*size: int, **how: Any) -> tuple[Any, Any]:
    """A figure and its axes, as `pyplot.subplots` makes them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(*size, **how)


def png(figure: Any, powers: bool = False) -> bytes:
    """A figure as a PNG; names in it may hold letters that the font has not.

    They may hold dollar signs, too, unless an axis writes powers of ten, which need them for themselves.
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
