"""The reference of commands: all arguments and options with their defaults, from the command line."""

import re
from collections.abc import Iterator
from typing import Any

import typer
from rich.text import Text

from fedlap.cli import app
from markdown_text import build_table, code, escape

DEFAULT = re.compile(
    r"\s*Default: (.+?)\.?$"
)  # at the end of a help text, if the default depends on something
ARGUMENTS, OPTIONS = "Arguments", "Options"  # headings of parameters without a heading of their own


def list_commands(command: Any = None, name: str = "fedlap") -> Iterator[tuple[str, Any]]:
    """Yield every command with its name, groups first.

    They are built apart from those that the process runs, since a command caches its options for a context.
    """
    command = typer.main.get_command(app) if command is None else command
    yield name, command
    for key, child in getattr(command, "commands", {}).items():
        yield from list_commands(child, f"{name} {key}")


def list_parameters(command: Any) -> list[Any]:
    """Return the parameters of a command that `--help` shows, without `--help` itself."""
    context = command.make_context("fedlap", [], resilient_parsing=True)
    return [p for p in command.get_params(context) if not getattr(p, "hidden", False) and p.name != "help"]


def name_parameter(parameter: Any) -> str:
    """Return the words that a user types: `--seed N`, or FILE."""
    metavar = (parameter.metavar or "").strip()
    if parameter.param_type_name == "argument":
        return metavar or parameter.name.upper()
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return f"{names} {metavar}".strip()


def escape_help(text: str) -> str:
    """Return a help text as Markdown, with options as code."""
    return escape(re.sub(r"(?<![\w-])(--[a-z][\w-]*|\$[A-Z_]+)", r"`\1`", text))


def split_help(parameter: Any) -> tuple[str, str]:
    """Return the meaning of a parameter, and its default as Markdown."""
    text = Text.from_markup(parameter.help or "").plain
    stated = DEFAULT.search(text)
    if stated is not None:
        return text[: stated.start()], escape_help(stated[1])
    if parameter.required:
        return text, "required"
    value = parameter.default
    if value is None or value is False or value == [] or value == ():
        return text, "–"
    return text, code(str(value))


def describe_parameters(command: Any) -> Iterator[str]:
    """Yield a table of parameters per heading of `--help`."""
    panels: dict[str, list[list[str]]] = {}
    for parameter in list_parameters(command):
        usual = ARGUMENTS if parameter.param_type_name == "argument" else OPTIONS
        text, default = split_help(parameter)
        row = [code(name_parameter(parameter)), default, escape_help(text)]
        panels.setdefault(parameter.rich_help_panel or usual, []).append(row)
    for panel, rows in panels.items():
        yield build_table([panel, "default", "meaning"], rows) + "\n"


def build_page() -> str:
    """Return the sections of all commands."""
    text = ""
    for name, command in list_commands():
        context = command.make_context(name, [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        first, *others = (command.help or "").split("\n\n")
        text += f"## {name}\n\n{escape(Text.from_markup(first).plain)}\n\n```\n{name} {usage}\n```\n\n"
        for paragraph in others:
            plain = Text.from_markup(paragraph).plain
            example = re.fullmatch(r"Example: (.*)", plain, re.S)
            text += f"Example:\n\n```\n{example[1]}\n```\n\n" if example else f"{escape_help(plain)}\n\n"
        children = [[f"[{name} {key}](#{slug(f'{name} {key}')})", escape(summarise(child))]
                    for key, child in getattr(command, "commands", {}).items()]  # fmt: skip
        text += build_table(["command", ""], children) + "\n" if children else ""
        text += "".join(describe_parameters(command))
    return text


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return heading.lower().replace(" ", "-")


def summarise(command: Any) -> str:
    """Return the first sentence of a command's help."""
    return Text.from_markup((command.help or "").split("\n\n")[0]).plain
