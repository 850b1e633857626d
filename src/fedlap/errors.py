"""What a user can do wrong, said in one line."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A mistake in what was asked for. The message says what is wrong, where, and what to do."""


class DivergedError(InputError):
    """Training left the finite numbers. The message says in which round, at which client, and why."""


def unknown(what: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not known, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return InputError(f"unknown {what} {str(name)!r}; {hint}")
