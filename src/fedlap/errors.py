"""Errors for users, each with a message of one line, and checks of numbers and names."""

import bisect
import copy
import difflib
import errno
import math
import numbers
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

LONGEST_MESSAGE = 600  # characters
MOST_SUGGESTIONS = 3  # known names in a message about an unknown name
LEAST_SIMILARITY = 0.65  # of a suggestion: the share of equal letters, from 0 to 1
LARGEST_LAG = 0.15  # in similarity, of a suggestion behind the best one
MOST_COMPARISONS = 1000  # known names that an unknown name is compared with, which takes about 20 ms
OUT_OF_MEMORY_TEXTS = ("not enough memory", "can't allocate memory", "out of memory")  # in errors of PyTorch


class InputError(ValueError):
    """A wrong input. The message states what was given, what is expected, and what to do.

    field: name of the wrong setting, as in "lr", or its path in an experiment, as in "algorithm.lr".
    scope: printed before the message: the section or owner of the setting, as in "fedavg".
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
        """Return a copy with another message, field and scope, and the same type and attributes."""
        copied = copy.copy(self)
        copied.args = (message,)
        copied.field, copied.scope = field, scope
        return copied

    def __str__(self) -> str:
        return shorten(f"{self.scope}: {self.message}" if self.scope else self.message)


class DataWarning(UserWarning):
    """A warning about valid data that may surprise the user."""


class DivergedError(InputError):
    """Training reached NaN or infinity. The message states the round, the client and the cause."""


class StoppedError(Exception):
    """Training was stopped on request; the message states what is stored, and a repeated command resumes."""


class UnsuitedError(InputError):
    """A method does not support this model, data or schedule. The message states why."""


def shorten(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Cut out the middle of a text that is too long; the end stays, since it states what to do."""
    if len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - end - 3]} … {text[-end:]}"


def unknown_name_error(
    what: str, name: object, known: Iterable[str], *, field: str | None = None
) -> InputError:
    """Return the error for an unknown name, with similar known names, or all if they are few."""
    names, text = sorted(known), shorten(str(name), 100)
    all_names = ", ".join(names) or "(none)"
    if suggestion := suggest_names(text, names):
        hint = suggestion.rstrip()
    elif len(all_names) <= LONGEST_MESSAGE // 2:
        hint = f"known: {all_names}"
    else:
        nearest = find_similar_names(text, names, cutoff=0.0)
        examples = ", ".join(shorten(candidate, 100) for candidate in nearest)
        hint = f"known: {examples}, … ({len(names):,} in all)"
    return InputError(f"unknown {what} {text!r}; {hint}", field=field)


def find_similar_names(name: str, names: Sequence[str], cutoff: float) -> list[str]:
    """Return the sorted names most similar to `name`: those that differ in case alone, if there are any.

    Of the others, only the `MOST_COMPARISONS` names that are closest to it in the sorted order are compared.
    """
    folded = name.casefold()
    if same := [known for known in names if known.casefold() == folded]:
        return same[:MOST_SUGGESTIONS]
    place = bisect.bisect_left(names, name)
    first = max(0, min(place - MOST_COMPARISONS // 2, len(names) - MOST_COMPARISONS))
    compared = {known.casefold(): known for known in names[first : first + MOST_COMPARISONS]}
    similar = difflib.get_close_matches(folded, list(compared), n=MOST_SUGGESTIONS, cutoff=cutoff)
    return [compared[key] for key in similar]


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Return "did you mean …? " with similar names, or nothing if there are none."""
    text = shorten(name, 100)
    similar = find_similar_names(text, sorted(known), cutoff=LEAST_SIMILARITY)
    if not similar:
        return ""
    ratios = [difflib.SequenceMatcher(None, known.casefold(), text.casefold()).ratio() for known in similar]
    similar = [
        name for name, ratio in zip(similar, ratios, strict=True) if ratio >= max(ratios) - LARGEST_LAG
    ]
    *others, last = (repr(shorten(candidate, 100)) for candidate in similar)
    return f"did you mean {' or '.join([', '.join(others), last] if others else [last])}? "


def check_integer(
    name: str,
    value: object,
    least: int | None = None,
    *,
    scope: str | None = None,
    field: str | None = None,
) -> int:
    """Return an integer of at least `least`; raise InputError for anything else.

    field: the setting, if `name` describes only a part of it.
    """
    number = int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise _value_error(name, value, f"expected an integer{bound}", scope, field)
    return number


def check_number(
    name: str, value: object, *, zero: bool, scope: str | None = None, field: str | None = None
) -> float:
    """Return a finite number above zero, or at least zero if `zero`; raise InputError for anything else.

    field: the setting, if `name` describes only a part of it.
    """
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not 0 <= number < math.inf or (number == 0 and not zero):
        bound = "of at least zero" if zero else "above zero"
        raise _value_error(name, value, f"expected a finite number {bound}", scope, field)
    return number


def _value_error(name: str, value: object, advice: str, scope: str | None, field: str | None) -> InputError:
    """Return the error for the value of a setting, or of a part of the setting `field`."""
    return InputError(f"{name} = {value!r}; {advice}", field=field or name, scope=scope)


@contextmanager
def report_out_of_memory(what: str, advice: str) -> Iterator[None]:
    """Turn an out-of-memory error of Python or PyTorch into an InputError with this advice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        reason = str(error).split("\n")[0][:150]
        if not is_out_of_memory(error):
            raise
        raise InputError(f"{what}: out of memory{reason and f' ({reason})'}; {advice}") from error


def is_out_of_memory(error: Exception) -> bool:
    """Return whether Python, NumPy, PyTorch or the system reports a lack of memory by this exception."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    text = str(error) if isinstance(error, RuntimeError) else ""
    return isinstance(error, MemoryError) or any(words in text for words in OUT_OF_MEMORY_TEXTS)
