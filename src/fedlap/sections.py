"""Sections of an experiment: a name and settings, checked against the maker of that name."""

import inspect
from collections.abc import Callable
from typing import Any

from pydantic import ConfigDict, ValidationError, create_model

from fedlap.errors import InputError, unknown

Section = dict[str, Any]


def settings_of(make: Callable[..., Any], leave: tuple[str, ...] = ()) -> dict[str, inspect.Parameter]:
    """The settings that a maker of data, models, algorithms or graphs takes."""
    return {name: p for name, p in inspect.signature(make).parameters.items() if name not in leave}


def known_name(what: str, section: Section, known: Any) -> str:
    """The section's name, which must be one of these."""
    name = section.get("name")
    if name not in known:
        raise unknown(what, name, known)
    return str(name)


def parted(section: Section) -> tuple[str, Section]:
    """The section's name and its settings."""
    settings = dict(section)
    return settings.pop("name"), settings


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
            raise InputError(f"{where}.{key} = {value}: it is not a matter of true or false")
    checker = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    try:
        made = checker.model_validate({key: value for key, value in section.items() if key != "name"})
    except ValidationError as error:
        owner = where if where == name else f"{where} {name!r}"
        raise one_line(error, f"{where}.", fields, owner) from None
    return {"name": name, **{key: value for key, value in made.model_dump().items() if value is not None}}


def one_line(error: ValidationError, prefix: str, known: Any, owner: str = "an experiment") -> InputError:
    """The first of pydantic's complaints, as a line that names the field."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][:1])
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, InputError):
        return inner
    if first["type"] == "extra_forbidden":
        return unknown(f"setting of {owner}", field, known or ["(none)"])
    if first["type"] == "missing":
        return InputError(f"{prefix}{field} is missing; {owner} needs it")
    message = first["msg"][0].lower() + first["msg"][1:]
    return InputError(f"{prefix}{field} = {first['input']!r}: {message}")
