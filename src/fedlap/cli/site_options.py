"""Options that several commands of training between machines have in common."""

from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli.options import DATA_PANEL, OUTPUT_PANEL

CONNECTION_PANEL, CHANGES_PANEL = "Connection", "Joining and leaving"

KeysOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Folder of keys; see fedlap keys.", rich_help_panel=CONNECTION_PANEL),
]
InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure",
        metavar="",
        help="Connect without TLS, on a trusted network only.",
        rich_help_panel=CONNECTION_PANEL,
    ),
]
NameOption = Annotated[
    str, typer.Option(metavar="NAME", help="Name of this client in the plan.", show_default=False)
]
ServerOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address of the server.", rich_help_panel=CONNECTION_PANEL),
]
ListenOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address to listen on. Default: the port of this peer's address in the plan.",
        rich_help_panel=CONNECTION_PANEL,
    ),
]
DataOption = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="File of this client's rows: .csv or .parquet.",
        rich_help_panel=DATA_PANEL,
        show_default=False,
    ),
]
LabelOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column to predict. Default: the label of the plan.",
        rich_help_panel=DATA_PANEL,
    ),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--client",
        metavar="COLUMNS",
        help="Columns of clients (comma-separated), if the file has rows of several.",
        rich_help_panel=DATA_PANEL,
    ),
]
ClientFolderOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder of this client's state, log and model. Default: fedlap-NAME.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
ModelOnlyOption = Annotated[
    Path | None,
    typer.Option(
        "--model-only",
        metavar="FILE",
        help="Copy the last model to this file (.safetensors), without a connection.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
ForgetOption = Annotated[
    bool,
    typer.Option(
        "--forget",
        metavar="",
        help="Delete state, log and model of this client.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
SiteFolderArgument = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="Folder of the server's run, or of the peer.", show_default=False),
]
