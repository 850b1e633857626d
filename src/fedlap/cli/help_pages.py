"""Commands whose `--help` names values as pip does: RUN and FILE, without braces and Python types."""

import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

REQUIRED_NAME = re.compile(r"\{(.+)\}(\.\.\.)?")  # as typer writes a required argument in the usage line

FLAGS_OF_TYPER = {"--help", "--install-completion", "--show-completion"}


class HelpCommand(TyperCommand):
    """A command with plain names of arguments in its help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters; help shows no types of arguments and flags."""
        return _hide_types(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        return [_format_usage_name(piece) for piece in super().collect_usage_pieces(ctx)]


class HelpGroup(TyperGroup):
    """A group of commands whose help shows no types."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters; help shows no types of flags."""
        return _hide_types(super().get_params(ctx))


def _hide_types(params: Sequence[Any]) -> list[Any]:
    for param in params:
        if isinstance(param, TyperArgument):
            # The name column already shows the metavar. Older releases of typer do not read this attribute.
            param.display_type_rich = _return_none  # type: ignore[method-assign]
        elif FLAGS_OF_TYPER & set(param.opts):
            param.metavar = ""
    return list(params)


def _return_none(ctx: Any) -> None:
    return None


def _format_usage_name(piece: str) -> str:
    """Return a required name without braces; a metavar of several words already lists all arguments."""
    found = REQUIRED_NAME.fullmatch(piece)
    if found is None:
        return piece
    return found[1] if " " in found[1] else f"{found[1]}{found[2] or ''}"
