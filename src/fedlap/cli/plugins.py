"""The option --plugin, which every command has that may need methods, models or data sets."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from fedlap.cli import console

PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Python file that registers methods, models or data sets (repeatable). "
        "Files in $FEDLAP_PLUGINS are loaded as well.",
        rich_help_panel="Plugins",
    ),
]


def accept_plugins(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the option --plugin; plugins are loaded before the command runs."""

    @functools.wraps(command)
    def load_and_run(*arguments: Any, plugin: list[str] | None = None, **options: Any) -> None:
        from fedlap.experiments.plugins import load_plugins

        load_plugins(plugin or [], lambda text: console.print_remark(f"warning: {text}"))
        command(*arguments, **options)

    signature = inspect.signature(command)
    added = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, annotation=PluginOption, default=None)
    parameters = [*signature.parameters.values(), added]
    load_and_run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return load_and_run
