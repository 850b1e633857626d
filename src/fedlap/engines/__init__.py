"""Where clients' rows run."""

from collections.abc import Callable
from typing import Final

from fedlap.engines.clients import Clients
from fedlap.engines.engine import Engine
from fedlap.engines.one_by_one import OneByOne
from fedlap.engines.stacked import Stacked

ENGINES: Final[dict[str, Callable[[Clients], Engine]]] = {"stacked": Stacked, "one_by_one": OneByOne}

__all__ = ["ENGINES", "Clients", "Engine", "OneByOne", "Stacked"]
