"""What a user can do wrong, said in one line."""

import bisect
import copy
import difflib
import errno
import math
import numbers
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

LONGEST = 600  # characters of a message
NEAREST = 3  # known names that a message about an unknown name suggests
COMPARED = 1000  # names that an unknown name is compared with, letter by letter: about 20 ms
NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory")  # as PyTorch says it


class InputError(ValueError):
    """A mistake in what was asked for. The message says what is wrong, where, and what to do.

    field: name of the wrong setting, as in "lr"; its path, as in "algorithm.lr", once an experiment found it.
    scope: printed before the message: the section or the maker of the setting, as in "fedavg".
    """

    def __init__(self, message: str, *, field: str | None = None, scope: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.scope = scope

    @property
    def message(self) -> str:
        """The message without its scope."""
        return str(self.args[0])

    def reword(self, message: str, *, field: str | None, scope: str | None) -> "InputError":
        """Return a copy with another message, field and scope; its type and other attributes stay."""
        copied = copy.copy(self)
        copied.args = (message,)
        copied.field, copied.scope = field, scope
        return copied

    def __str__(self) -> str:
        return shortened(f"{self.scope}: {self.message}" if self.scope else self.message)


class DataWarning(UserWarning):
    """Something in a user's data that is not wrong but may surprise."""


class DivergedError(InputError):
    """Training left the finite numbers. The message says in which round, at which client, and why."""


class UnsuitedError(InputError):
    """A method that cannot be used for this model, data or schedule. The message says why."""


def shortened(text: str, longest: int = LONGEST) -> str:
    """The text, without its middle if it is too long: its end says what to do."""
    if len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - end - 3]} … {text[-end:]}"


def unknown(what: str, name: object, known: Iterable[str], *, field: str | None = None) -> InputError:
    """The error for an unknown name, with the nearest known names; all known names if they are few."""
    names, given = sorted(known), shortened(str(name), 100)
    all_names = ", ".join(names) or "(none)"
    near = nearest(given, names, cutoff=0.6)
    if near:
        *others, last = (repr(shortened(each, 100)) for each in near)
        hint = f"did you mean {' or '.join([', '.join(others), last] if others else [last])}?"
    elif len(all_names) <= LONGEST // 2:
        hint = f"known: {all_names}"
    else:
        some = ", ".join(shortened(each, 100) for each in nearest(given, names, cutoff=0.0))
        hint = f"known: {some}, … ({len(names):,} in all)"
    return InputError(f"unknown {what} {given!r}; {hint}", field=field)


def nearest(name: str, names: Sequence[str], cutoff: float) -> list[str]:
    """The names most similar to this one; of many, only those that stand near it in sorted order."""
    at = bisect.bisect_left(names, name)
    first = max(0, min(at - COMPARED // 2, len(names) - COMPARED))
    return difflib.get_close_matches(name, names[first : first + COMPARED], n=NEAREST, cutoff=cutoff)


def whole(
    name: str,
    value: object,
    least: int | None = None,
    *,
    scope: str | None = None,
    field: str | None = None,
) -> int:
    """A whole number, of at least this much; `field` is the setting where `name` is only a part of it."""
    number = int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f", at least {least}"
        raise _wrong_value(name, value, f"it must be a whole number{bound}", scope, field)
    return number


def real(
    name: str, value: object, *, zero: bool, scope: str | None = None, field: str | None = None
) -> float:
    """A finite number above zero, or from zero on; `field` is as for `whole`."""
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not 0 <= number < math.inf or (number == 0 and not zero):
        least = "zero or more" if zero else "above zero"
        raise _wrong_value(name, value, f"it must be a finite number, {least}", scope, field)
    return number


def _wrong_value(name: str, value: object, advice: str, scope: str | None, field: str | None) -> InputError:
    """The error for the value of a setting, or of a part of the setting `field`."""
    return InputError(f"{name} = {value!r}; {advice}", field=field or name, scope=scope)


@contextmanager
def memory_reported(what: str, advice: str) -> Iterator[None]:
    """Turn an error of Python or PyTorch for want of memory into one line with this advice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        reason = str(error).split("\n")[0][:150]
        if not is_out_of_memory(error):
            raise
        raise InputError(f"{what}: out of memory{reason and f' ({reason})'}; {advice}") from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether an exception of Python, NumPy, PyTorch or the system says that memory was lacking."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    text = str(error) if isinstance(error, RuntimeError) else ""
    return isinstance(error, MemoryError) or any(words in text for words in NO_MEMORY)
