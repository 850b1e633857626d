"""Sections of an experiment: a name and settings, checked against the builder of that name and the memory."""

import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from fedlap.algorithms import Algorithm, is_adapting
from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.data.federation import Federation
from fedlap.errors import InputError, unknown_name_error
from fedlap.models import Network

Section = dict[str, Any]

INTEGER_LIMIT = 2**63  # integers must be below this number
SHOWN_CHARACTERS = 80  # characters of a value in an error message
VALUES_PER_CLIENT = 25  # approximate memory of a client's name and list entries, in values of eight bytes


def inspect_settings(build: Callable[..., Any], skip: tuple[str, ...] = ()) -> dict[str, inspect.Parameter]:
    """Return the settings of a builder of data, models, algorithms or graphs; `bind` sets a field `_name`."""
    parameters = inspect.signature(build).parameters.items()
    return {name: p for name, p in parameters if name not in skip and not name.startswith("_")}


def check_section_name(where: str, kind: str, section: Section, known: Any) -> str:
    """Return the name of a section; raise InputError unless it is known."""
    if "name" not in section:
        names = ", ".join(sorted(known))
        raise InputError(f"{where}.name is missing; use one of {names}", field=f"{where}.name")
    name = section["name"]
    if not isinstance(name, str) or name not in known:
        problem = unknown_name_error(kind, str(name)[:SHOWN_CHARACTERS], known)
        raise InputError(f"{where}.name: {problem}", field=f"{where}.name")
    return name


def flatten_fields(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return all fields by dotted path."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten_fields(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def split_section(section: Section) -> tuple[str, Section]:
    """Return the name and the settings of a section."""
    settings = dict(section)
    return settings.pop("name"), settings


@contextmanager
def locate_errors(**sections: Section | None) -> Iterator[None]:
    """Add the path of the field, such as "algorithm.lr", to an InputError of the block.

    An error without such a field is prefixed with its section, or else with the first section.
    """
    try:
        yield
    except InputError as error:
        field, scope = error.field, error.scope
        for where, section in sections.items():
            settings = section or {}
            if field is not None and field in settings and scope in (None, where, settings.get("name")):
                raise _with_path(error, f"{where}.{field}", field) from error
        if scope in sections or (field is not None and field.split(".")[0] in sections):
            raise
        raise error.reword(f"{next(iter(sections))}: {error}", field=field, scope=None) from error


def _with_path(error: InputError, path: str, field: str) -> InputError:
    """Return the error with the path before its message, or in place of the leading field name."""
    begins = error.message.startswith((f"{field} ", f"{field}:"))
    message = path + error.message.removeprefix(field) if begins else f"{path}: {error.message}"
    return error.reword(message, field=path, scope=None)


def complete_section(
    where: str,
    name: str,
    build: Callable[..., Any],
    section: Section,
    skip: tuple[str, ...] = (),
    extra: dict[str, Any] | None = None,
) -> Section:
    """Return the section with all settings of `build`, validated; missing ones get their defaults."""
    fields: dict[str, Any] = {
        key: (p.annotation, ... if p.default is inspect.Parameter.empty else p.default)
        for key, p in inspect_settings(build, skip).items()
    } | (extra or {})
    for key, value in section.items():
        if isinstance(value, bool) and key in fields and fields[key][0] not in (bool, bool | None):
            raise build_boolean_error(f"{where}.{key}", value)
    try:
        valid = _create_checker(name, fields).model_validate(
            {key: value for key, value in section.items() if key != "name"}
        )
    except ValidationError as error:
        owner = where if where == name else f"{where} {name!r}"
        raise to_input_error(error, fields, owner, section=where) from None
    return {"name": name, **{key: value for key, value in valid.model_dump().items() if value is not None}}


def _create_checker(name: str, fields: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    """Return a pydantic model of the fields, the same one for the same fields."""
    # 1, 1.0 and True are equal, but different defaults.
    described = tuple((key, *field, repr(field[1])) for key, field in fields.items())
    try:
        return _create_hashable_checker(name, described)
    except TypeError:  # a default that cannot be hashed, such as a user's list
        return _create_hashable_checker.__wrapped__(name, described)


@lru_cache(maxsize=256)
def _create_hashable_checker(name: str, fields: tuple[tuple[str, Any, Any, str], ...]) -> type[BaseModel]:
    settings: dict[str, Any] = {key: (annotation, default) for key, annotation, default, _ in fields}
    return create_model(name, __config__=ConfigDict(extra="forbid"), **settings)


def to_input_error(
    error: ValidationError, known: Any, owner: str = "an experiment", *, section: str = "", prefix: str = ""
) -> InputError:
    """Turn the first error of pydantic into an InputError with the path of its field.

    section: section of the field; empty for the experiment itself, or for a file.
    prefix: printed before the path of the field.
    """
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][:1])
    path = f"{section}.{field}" if section else field
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, InputError):
        return inner
    if first["type"] == "extra_forbidden":
        problem = unknown_name_error(
            f"setting of {owner}", field[:SHOWN_CHARACTERS], known or ["(none)"], field=path
        )
        if not section and not prefix:
            return problem
        place = f"{section}." if section else prefix
        return InputError(f"{place}{field[:SHOWN_CHARACTERS]}: {problem}", field=path)
    if first["type"] == "missing":
        return InputError(f"{prefix}{path} is missing; {owner} needs it", field=path)
    choices = _list_choices([other for other in error.errors() if other["loc"][:1] == first["loc"][:1]])
    if choices:
        return InputError(f"{prefix}{path} = {shorten_value(first['input'])}; expected {choices}", field=path)
    message = (first["msg"][0].lower() + first["msg"][1:]).replace("input should be ", "expected ")
    return InputError(f"{prefix}{path} = {shorten_value(first['input'])}; {message}", field=path)


def _list_choices(errors: Sequence[Any]) -> str:
    """Return what a text should have been, if it was to be a number: a number, or one of some words."""
    kinds = {"float_parsing": "a number", "int_parsing": "an integer"}
    if errors[0]["type"] not in kinds:
        return ""
    words = [str(other["ctx"]["expected"]) for other in errors if other["type"] == "literal_error"]
    return " or ".join([kinds[errors[0]["type"]], *words])


def build_boolean_error(path: str, value: bool) -> InputError:
    """Return the error for a boolean in the place of a number or name."""
    return InputError(f"{path} = {value}; expected a number or a name, got a boolean", field=path)


def check_integers(where: str, value: Any) -> None:
    """Raise InputError for integers that do not fit into 64 bits, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            check_integers(f"{where}.{key}" if where else key, inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_integers(where, inner)
    elif isinstance(value, int) and not -INTEGER_LIMIT <= value < INTEGER_LIMIT:
        raise InputError(f"{where} = {shorten_value(value)}; expected an integer below 2⁶³", field=where)


def shorten_value(value: object) -> str:
    """Return the value as text, cut to fit into a message."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def format_value(value: Any) -> str:
    """Format a value for a table; different numbers have different texts."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} = {format_value(item)}" for key, item in value.items())
    return str(value)


def check_data_size(data: Section, partition: Section) -> None:
    """Raise InputError for clients and rows that do not fit into memory, before they are created."""
    if "clients" in partition:
        clients = partition["clients"]
        _check_memory(
            f"partition.clients = {clients}; they", clients * VALUES_PER_CLIENT, field="partition.clients"
        )
    if data["name"] == "synthetic":
        clients, features, rows = data["clients"], data["features"], data["rows"] + data["test_rows"]
        outputs = data["labels"] if data["task"] == "classification" else 1
        _check_memory(
            f"{clients} clients with {rows} rows of {features} features and {outputs} labels",
            clients * (VALUES_PER_CLIENT + 3 * rows * (features + outputs) + 3 * features * outputs),
            scope="data",
        )


def check_training_size(
    algorithm: Algorithm, federation: Federation, network: Network, sample: float, batch: BatchSize
) -> None:
    """Raise InputError for models and mini-batches that do not fit into memory, before they are created."""
    clients, largest = len(federation.clients), int(federation.train.count.max())
    cohort = math.ceil(sample * clients)
    shared = algorithm.traits.kind == "one model" and not is_adapting(algorithm)
    models = cohort if shared else clients
    _check_memory(f"{models} models of {network.size} parameters", (models + 4) * network.size, scope="model")
    work = LocalWork.of(algorithm.local_steps, algorithm.local_epochs)
    size = largest if batch == "all" else batch
    steps = work.repeats * (math.ceil(largest / size) if work.epochs else 1)
    if size >= largest and not work.epochs:  # every step uses all rows
        size, steps = largest, 1
    rows = cohort * size
    _check_memory(f"batch = {batch}; mini-batches", rows * (math.prod(federation.inputs) + 8), field="batch")
    _check_memory(f"{steps} steps of {rows} rows per round", steps * rows * 8, scope="algorithm")


def _check_memory(subject: str, values: int, *, field: str | None = None, scope: str | None = None) -> None:
    """Raise InputError if the values, at eight bytes each, need more memory than the machine has."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 8 * values > memory:
        raise InputError(
            f"{subject} need more memory than this machine has ({memory // 10**9} GB); use fewer",
            field=field,
            scope=scope,
        )
