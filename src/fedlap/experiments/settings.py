"""Sections of an experiment: a name and settings, checked against the maker of that name, and memory."""

import inspect
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ConfigDict, ValidationError, create_model

from fedlap.algorithms import Algorithm
from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.data.federation import Federation
from fedlap.errors import InputError, unknown
from fedlap.models import Network

Section = dict[str, Any]

LARGEST = 2**63
SHOWN = 80  # characters of a value that is refused
CLIENT = 25  # values that a client's name and its places in lists take, about


def settings_of(make: Callable[..., Any], leave: tuple[str, ...] = ()) -> dict[str, inspect.Parameter]:
    """The settings that a maker of data, models, algorithms or graphs takes."""
    return {name: p for name, p in inspect.signature(make).parameters.items() if name not in leave}


def known_name(where: str, what: str, section: Section, known: Any) -> str:
    """The section's name, which must be one of these."""
    if "name" not in section:
        raise InputError(f"{where}.name is missing; known: {', '.join(sorted(known))}", field=f"{where}.name")
    name = section["name"]
    if not isinstance(name, str) or name not in known:
        problem = unknown(what, str(name)[:SHOWN], known)
        raise InputError(f"{where}.name: {problem}", field=f"{where}.name")
    return name


def parted(section: Section) -> tuple[str, Section]:
    """The section's name and its settings."""
    settings = dict(section)
    return settings.pop("name"), settings


@contextmanager
def locate_errors(**sections: Section | None) -> Iterator[None]:
    """Raise an InputError of the block with the path of its field in one of these sections.

    An error without such a field names its own section, or else the first of these.
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
    """The error with this path before its message, or instead of the field's name that begins it."""
    begins = error.message.startswith((f"{field} ", f"{field}:"))
    message = path + error.message.removeprefix(field) if begins else f"{path}: {error.message}"
    return error.reword(message, field=path, scope=None)


def completed(
    where: str,
    name: str,
    make: Callable[..., Any],
    section: Section,
    leave: tuple[str, ...] = (),
    more: dict[str, Any] | None = None,
) -> Section:
    """The section with every setting that `make` takes, of the right type."""
    fields: dict[str, Any] = {
        key: (p.annotation, ... if p.default is inspect.Parameter.empty else p.default)
        for key, p in settings_of(make, leave).items()
    } | (more or {})
    for key, value in section.items():
        if isinstance(value, bool) and key in fields and fields[key][0] is not bool:
            path = f"{where}.{key}"
            raise InputError(f"{path} = {value}: it is not a matter of true or false", field=path)
    checker = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    try:
        made = checker.model_validate({key: value for key, value in section.items() if key != "name"})
    except ValidationError as error:
        owner = where if where == name else f"{where} {name!r}"
        raise one_line(error, fields, owner, section=where) from None
    return {"name": name, **{key: value for key, value in made.model_dump().items() if value is not None}}


def one_line(
    error: ValidationError, known: Any, owner: str = "an experiment", *, section: str = "", prefix: str = ""
) -> InputError:
    """The first of pydantic's complaints, as a line that names the field.

    section: where the field is; empty for the experiment itself, or for a file.
    prefix: printed before the field's path.
    """
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][:1])
    path = f"{section}.{field}" if section else field
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, InputError):
        return inner
    if first["type"] == "extra_forbidden":
        problem = unknown(f"setting of {owner}", field[:SHOWN], known or ["(none)"], field=path)
        if not section and not prefix:
            return problem
        place = f"{section}." if section else prefix
        return InputError(f"{place}{field[:SHOWN]}: {problem}", field=path)
    if first["type"] == "missing":
        return InputError(f"{prefix}{path} is missing; {owner} needs it", field=path)
    message = first["msg"][0].lower() + first["msg"][1:]
    return InputError(f"{prefix}{path} = {brief(first['input'])}: {message}", field=path)


def check_numbers(where: str, value: Any) -> None:
    """Refuse whole numbers that no machine counts with, wherever they are."""
    if isinstance(value, dict):
        for key, inner in value.items():
            check_numbers(f"{where}.{key}" if where else key, inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_numbers(where, inner)
    elif isinstance(value, int) and not -LARGEST <= value < LARGEST:
        raise InputError(f"{where} = {brief(value)}: a whole number must be below 2⁶³", field=where)


def brief(value: object) -> str:
    """What was given, as much of it as a line has room for."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def check_data(data: Section, partition: Section) -> None:
    """Refuse clients and rows that no memory holds, before they are made."""
    if "clients" in partition:
        clients = partition["clients"]
        _check_memory(f"partition.clients = {clients}: they", clients * CLIENT, field="partition.clients")
    if data["name"] == "synthetic":
        clients, features, rows = data["clients"], data["features"], data["rows"] + data["test_rows"]
        outputs = data["labels"] if data["task"] == "classification" else 1
        _check_memory(
            f"{clients} clients with {rows} rows of {features} features and {outputs} labels",
            clients * (CLIENT + 3 * rows * (features + outputs) + 3 * features * outputs),
            scope="data",
        )


def check_training(
    algorithm: Algorithm, federation: Federation, network: Network, sample: float, batch: BatchSize
) -> None:
    """Refuse models and mini-batches that no memory holds, before they are made."""
    clients, most = len(federation.clients), int(federation.train.count.max())
    working = math.ceil(sample * clients)
    models = working if algorithm.kind == "one model" else clients
    _check_memory(f"{models} models of {network.size} parameters", (models + 4) * network.size, scope="model")
    work, size = (
        LocalWork.of(algorithm.local_steps, algorithm.local_epochs),
        most if batch == "all" else batch,
    )
    steps = work.repeats * (math.ceil(most / size) if work.epochs else 1)
    if size >= most and not work.epochs:  # all rows, step after step
        size, steps = most, 1
    rows = working * size
    _check_memory(f"batch = {batch}: mini-batches", rows * (math.prod(federation.inputs) + 8), field="batch")
    _check_memory(f"{steps} steps of {rows} rows in a round", steps * rows * 8, scope="algorithm")


def _check_memory(what: str, values: int, *, field: str | None = None, scope: str | None = None) -> None:
    """Refuse what takes more memory than there is, at eight bytes a value."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 8 * values > memory:
        raise InputError(
            f"{what} need more memory than this machine has ({memory // 10**9} GB); take fewer",
            field=field,
            scope=scope,
        )
