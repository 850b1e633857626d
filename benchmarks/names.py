"""Check names that benchmarks get on the command line."""

import sys
from collections.abc import Collection, Iterable

from fedlap.errors import suggest_names


def check_names(option: str, names: Iterable[str], known: Collection[str]) -> None:
    """Exit with one line if a name is not known."""
    for name in names:
        if name not in known:
            message = f"{option}: unknown name {name!r}; {suggest_names(name, known)}use {', '.join(known)}"
            print(message, file=sys.stderr)
            sys.exit(2)
