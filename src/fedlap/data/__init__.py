"""Data sets by name."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fedlap.data.digits import digits
from fedlap.data.synthetic import Synthetic, synthetic
from fedlap.errors import unknown
from fedlap.federation import Federation
from fedlap.graph import Graph
from fedlap.parts import Scaling


@dataclass(frozen=True)
class Source:
    """A data set that can be loaded by name."""

    make: Callable[..., Federation | Synthetic]
    scale: Scaling  # how features are scaled unless one says otherwise
    about: str


SOURCES: Final[dict[str, Source]] = {
    "digits": Source(
        digits, "pooled", "1,797 handwritten digits of 8×8 pixels, few labels a client (embedded)"
    ),
    "synthetic": Source(synthetic, "none", "clients whose true models are smooth on a known graph (made up)"),
}


def load(name: str, seed: int = 0, *, scale: Scaling | None = None, **settings: Any) -> Federation:
    """The data set of this name, cut into clients and split by `seed`."""
    return load_with_graph(name, seed, scale=scale, **settings)[0]


def load_with_graph(
    name: str, seed: int = 0, *, scale: Scaling | None = None, **settings: Any
) -> tuple[Federation, Graph | None]:
    """The data set, and the graph that its clients' true models are smooth on where that is known."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    source = SOURCES[name]
    known = [name for name in inspect.signature(source.make).parameters if name != "seed"]
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of data {name!r}", setting, known)
    made = source.make(seed=seed, **settings)
    federation, graph = (made.federation, made.graph) if isinstance(made, Synthetic) else (made, None)
    return federation.scaled(source.scale if scale is None else scale), graph


__all__ = ["SOURCES", "Source", "Synthetic", "digits", "load", "load_with_graph", "synthetic"]
