"""The option `--neighbours`: names with weights."""

from collections.abc import Sequence

from fedlap.errors import InputError


def parse_neighbours(words: Sequence[str], clients: Sequence[str]) -> dict[str, float]:
    """Parse NAME and NAME=WEIGHT, passed one by one or separated by commas; the default weight is 1.

    A name that contains a comma or an equals sign is passed alone.
    """
    weights: dict[str, float] = {}
    known = set(clients)
    for word in words:
        whole, rest = _split_weight(word, known)
        is_one = whole in known and "," not in rest  # not as in north=2,south
        for piece in [word] if is_one else word.split(","):
            name, weight = _split_weight(piece.strip(), known)
            if not name:
                raise InputError(
                    f"--neighbours {word}: expected names or name=weight with commas between, "
                    "e.g. north,south=0.5"
                )
            if name in weights:
                raise InputError(f"--neighbours {word}: {name!r} is named twice; remove one")
            weights[name] = _parse_weight(word, weight)
    return weights


def _split_weight(text: str, known: set[str]) -> tuple[str, str]:
    """Return the name and the weight as text; the name of a client may contain an equals sign."""
    if text in known or "=" not in text:
        return text, "1"
    name, _, weight = text.rpartition("=")
    return name.strip(), weight.strip()


def _parse_weight(word: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"--neighbours {word}: {text!r} is not a number; write a weight as in north=0.5"
        ) from None
