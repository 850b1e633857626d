"""The checker of types and shapes that is on while tests run; whole numbers may stand for real ones.

jaxtyping's import hook puts `jaxtyping.jaxtyped` on every function of a package. That decorator checks all
arguments twice per call, and takes milliseconds for every function that it decorates. `decorate` replaces it:
a function is checked once per call, and a function without annotations is not wrapped at all.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
shapes_of_a_call = jaxtyping.jaxtyped("context")  # within it, an axis of one name has one size
jaxtyped = jaxtyping.jaxtyped
inner_functions: dict[tuple[CodeType, Any], FunctionType] = {}  # checked ones, by code and annotations


def check_package(package: str) -> AbstractContextManager[None]:
    """Check types and shapes in the modules of a package that are imported in this context."""
    # It is not put back, since functions inside functions are decorated whenever the outer ones are called.
    jaxtyping.jaxtyped = decorate
    return jaxtyping.install_import_hook(package, "shapes.check")


def decorate(*, typechecker: Callable) -> Callable:
    """Return the decorator that the hook puts on functions, methods and classes."""
    return functools.partial(add_checks, typechecker=typechecker)


def add_checks(thing: Any, typechecker: Callable) -> Any:
    """Check a function, or the constructor of a dataclass."""
    if not inspect.isclass(thing):
        return check_function(thing, typechecker)
    # An inherited constructor is checked already, and so is one that is written in the class.
    if dataclasses.is_dataclass(thing) and not hasattr(thing.__init__, "__wrapped__"):
        thing.__init__ = check_function(thing.__init__, typechecker)
    return thing


def check_function(function: FunctionType, typechecker: Callable) -> Callable:
    """Return a function that checks its arguments and what it returns."""
    if not function.__annotations__:
        return function
    hints = resolve_hints(function)
    shapes = [text for text in map(repr, hints.values()) if "jaxtyping." in text]
    # The size of an axis may be an argument, and beartype checks generators as they run, within other calls.
    if any("{" in text for text in shapes) or inspect.isgeneratorfunction(function):
        return jaxtyped(function, typechecker=typechecker)
    checked = check_types(function, hints, typechecker)
    if not shapes:
        return checked

    @functools.wraps(checked)
    def check_shapes(*args, **kwargs):
        __tracebackhide__ = True
        with shapes_of_a_call:
            return checked(*args, **kwargs)

    return check_shapes


def check_types(function: FunctionType, hints: dict[str, Any], typechecker: Callable) -> FunctionType:
    """Return a function that checks its arguments and what it returns, without the context of shapes.

    A function inside another function is created often, and only the first of them is compiled.
    """
    inner = "<locals>" in function.__qualname__
    key = (function.__code__, tuple(hints.items()))
    first = inner_functions.get(key) if inner else None
    if first is not None:
        checked = FunctionType(first.__code__, first.__globals__, first.__name__)
        checked.__kwdefaults__ = first.__kwdefaults__ | {"__beartype_func": function}
        return functools.update_wrapper(checked, function)
    written = function.__annotations__
    function.__annotations__ = hints
    checked = typechecker(function)
    function.__annotations__ = checked.__annotations__ = written
    if inner and "__beartype_func" in (checked.__kwdefaults__ or {}):
        inner_functions[key] = checked
    return checked


def resolve_hints(function: FunctionType) -> dict[str, Any]:
    """Return annotations as types; a name that does not exist yet may be any type."""
    hints = {}
    for name, hint in function.__annotations__.items():
        try:
            holder = SimpleNamespace(__annotations__={name: hint})
            hints |= get_type_hints(holder, function.__globals__, include_extras=True)
        except NameError:
            hints[name] = Any
    return hints
