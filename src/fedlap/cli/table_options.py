"""Options for the columns and rows of a user's file."""

from typing import Annotated, Any

import typer

from fedlap.cli.names import MISSING_RULE_NAMES, SPLIT_NAMES

TABLE_PANEL = "Your file"


def _build_option(metavar: str, help_text: str) -> Any:
    return Annotated[str | None, typer.Option(metavar=metavar, help=help_text, rich_help_panel=TABLE_PANEL)]


SeparatorOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIGN",
        help="Separator of a .csv file, e.g. ; or tab. Default: detected.",
        rich_help_panel=TABLE_PANEL,
    ),
]
DecimalOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIGN",
        help="Decimal sign of a .csv file: . or a comma. Default: detected.",
        rich_help_panel=TABLE_PANEL,
    ),
]

TABLE_OPTIONS: dict[str, tuple[Any, Any]] = {
    "levels": (
        Annotated[
            list[str] | None,
            typer.Option(
                metavar="COLUMN",
                help="Column of numbers that are names, to be one-hot like text (repeatable).",
                rich_help_panel=TABLE_PANEL,
            ),
        ],
        None,
    ),
    "missing": (
        _build_option(
            "RULE",
            f"Missing values: {', '.join(MISSING_RULE_NAMES)}. drop removes rows, and mean fills cells. "
            "Default: refuse.",
        ),
        None,
    ),
    "split": (
        _build_option(
            "RULE",
            f"Choice of test rows: {', '.join(SPLIT_NAMES)} (the last rows of each client). Default: random.",
        ),
        None,
    ),
    "time": (_build_option("COLUMN", "Column of times or dates, for --split time."), None),
    "group": (_build_option("COLUMN", "Column of groups; rows of a group are not split."), None),
    "weight": (_build_option("COLUMN", "Column of sample weights of training rows, at least 0."), None),
    "skip_empty": (
        Annotated[
            bool,
            typer.Option(
                "--skip-empty",
                metavar="",
                help="Leave out clients without training rows.",
                rich_help_panel=TABLE_PANEL,
            ),
        ],
        False,
    ),
    "separator": (SeparatorOption, None),
    "decimal": (DecimalOption, None),
}
