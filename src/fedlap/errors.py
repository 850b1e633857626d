"""What a user can do wrong, said in one line."""

import difflib
import math
import numbers
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory")  # as PyTorch says it


class InputError(ValueError):
    """A mistake in what was asked for. The message says what is wrong, where, and what to do."""


class DataWarning(UserWarning):
    """Something in a user's data that is not wrong but may surprise."""


class DivergedError(InputError):
    """Training left the finite numbers. The message says in which round, at which client, and why."""


class UnsuitedError(InputError):
    """A method that cannot be used for this model, data or schedule. The message says why."""


def unknown(what: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not known, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or '(none)'}"
    return InputError(f"unknown {what} {str(name)!r}; {hint}")


def whole(name: str, value: object, least: int | None = None) -> int:
    """A whole number, of at least this much."""
    number = int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f", at least {least}"
        raise InputError(f"{name} = {value!r}; it must be a whole number{bound}")
    return number


def real(name: str, value: object, *, zero: bool) -> float:
    """A finite number above zero, or from zero on."""
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not 0 <= number < math.inf or (number == 0 and not zero):
        least = "zero or more" if zero else "above zero"
        raise InputError(f"{name} = {value!r}; it must be a finite number, {least}")
    return number


@contextmanager
def memory_reported(what: str, advice: str) -> Iterator[None]:
    """Turn an error of Python or PyTorch for want of memory into one line with this advice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        reason = str(error).split("\n")[0][:150]
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in NO_MEMORY):
            raise
        raise InputError(f"{what}: out of memory{reason and f' ({reason})'}; {advice}") from error
