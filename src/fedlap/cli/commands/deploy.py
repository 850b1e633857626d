"""Commands of training between machines: status."""

from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli.options import OUTPUT_PANEL, JsonOption


def status_command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the server's run.", show_default=False)
    ],
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            metavar="",
            help="Update the table until the run ends or Ctrl-C.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the round, the clients, bytes and scores of a server.

    The server replaces the file status.json in its folder about once per second. This
    command only reads that file: run it on the server's machine, as the server's user.

    Example: fedlap status radon-minnesota --watch
    """
    from fedlap.cli.status import show_status

    show_status(folder, watch, as_json)
