"""Fields over lists of values, as given by --vary."""

from collections.abc import Sequence

from fedlap.cli.arguments import parse_value
from fedlap.comparisons.graphs import resolve_shuffled
from fedlap.errors import InputError
from fedlap.experiments.experiment import SHUFFLED
from fedlap.experiments.fields import Combination, VariedField, combine_values, find_path
from fedlap.experiments.settings import format_value

VARY_EXAMPLE = "--vary strength=0,0.01,0.1"
BRACKETS = {"[": "]", "{": "}"}


def list_combinations(texts: Sequence[str], algorithm: str) -> list[Combination]:
    """Return all combinations of values, the last field changing fastest."""
    if not texts:
        raise InputError(f"sweep: no --vary option; add a field and its values, e.g. {VARY_EXAMPLE}")
    fields: list[VariedField] = []
    for text in texts:
        new = parse_varied_field(text, algorithm)
        if new.path in [field.path for field in fields]:
            raise InputError(f"--vary {text}: {new.name} is varied twice; put all its values in one list")
        fields.append(new)
    return combine_values(fields)


def parse_varied_field(text: str, algorithm: str) -> VariedField:
    """Parse field=value,value,…; a repeated value counts once.

    In a list of graphs, "shuffled" stands for the shuffled form of the graph before it, as in `compare`.
    """
    key, equals, listed = text.partition("=")
    pieces = split_values(listed)
    if not equals or not key.strip() or not all(pieces):
        raise InputError(f"--vary {text}: expected field=value,value,…, e.g. {VARY_EXAMPLE}")
    path = find_path(key.strip().replace("-", "_"), f"--vary {text}", algorithm)
    if path == "graph" and SHUFFLED in pieces:
        return resolve_shuffled(VariedField(path, pieces, "--vary"))
    values = {format_value(value): value for value in map(parse_value, pieces)}
    return VariedField(path, list(values.values()), "--vary")


def split_values(text: str) -> list[str]:
    """Split at commas that are outside brackets and quotes."""
    pieces, quote = [""], ""
    closing: list[str] = []
    for character in text:
        if character == "," and not closing and not quote:
            pieces.append("")
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in BRACKETS:
            closing.append(BRACKETS[character])
        elif closing and character == closing[-1]:
            closing.pop()
        pieces[-1] += character
    return [piece.strip() for piece in pieces]
