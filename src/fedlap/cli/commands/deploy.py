"""Commands of training between machines: serve, client, check, status, admit and eject."""

from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli.options import DATA_PANEL, OUTPUT_PANEL, JsonOption
from fedlap.deploy.extra import check_deploy_extra

CONNECTION_PANEL = "Connection"

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
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="Address of the server.",
        rich_help_panel=CONNECTION_PANEL,
        show_default=False,
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
ServerFolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Folder of the server's run.", show_default=False)
]


def serve_command(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="Plan of the run (.toml).", show_default=False)
    ],
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to listen on; port 0 chooses one.",
            rich_help_panel=CONNECTION_PANEL,
        ),
    ] = "0.0.0.0:7447",
    keys: KeysOption = None,
    insecure: InsecureOption = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of the run. Default: runs/ and its name.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
) -> None:
    """Serve a run between machines: wait for its clients, train, and write a report.

    Clients dial in, and their rows stay with them. A server that is started again resumes the run where it
    was. SIGTERM stops it.

    Example: fedlap serve plan.toml --keys keys/server
    """
    check_deploy_extra("serve")
    from fedlap.cli.serve import serve

    serve(plan, listen, keys, folder, insecure)


def client_command(
    name: NameOption,
    server: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address of the server.", rich_help_panel=CONNECTION_PANEL),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File of this client's rows: .csv or .parquet.", rich_help_panel=DATA_PANEL
        ),
    ] = None,
    label: LabelOption = None,
    client: ColumnsOption = None,
    keys: KeysOption = None,
    insecure: InsecureOption = False,
    folder: ClientFolderOption = None,
    leave: Annotated[
        bool, typer.Option("--leave", metavar="", help="Leave the run for good, and end.")
    ] = False,
    model_only: Annotated[
        Path | None,
        typer.Option(
            "--model-only",
            metavar="FILE",
            help="Copy the last model to this file (.safetensors), without the server.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            metavar="",
            help="Delete state, log and model of this client.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
) -> None:
    """Take part in a run: ask the server for work, train on local rows, and answer.

    Rows and private state stay in this process and its folder. A client that is started again continues.
    SIGTERM stops it after its round.

    Example: fedlap client --name north --data my.csv --server fed.example.org:7447 --keys keys/north
    """
    check_deploy_extra("client")
    from fedlap.cli.site_client import choose_client_action

    choose_client_action(
        name,
        server,
        data,
        label,
        client,
        keys,
        insecure,
        folder,
        leave=leave,
        model=model_only,
        forget=forget,
    )


def check_command(
    name: NameOption,
    server: ServerOption,
    data: DataOption,
    label: LabelOption = None,
    client: ColumnsOption = None,
    keys: KeysOption = None,
    insecure: InsecureOption = False,
    folder: ClientFolderOption = None,
) -> None:
    """Check connection, certificate, versions, clock, disk and data of a client before a run.

    Prints one line per check, and the bytes and seconds that the messages of a round take. Only shapes leave.

    Example: fedlap check --name north --data my.csv --server fed.example.org:7447 --keys keys/north
    """
    check_deploy_extra("check")
    from fedlap.cli.site_client import check_client

    check_client(name, data, label, client, server, keys, folder, insecure)


def admit_command(
    folder: ServerFolderArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new client.", show_default=False)],
    neighbours: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Neighbours (comma-separated), each NAME or NAME=WEIGHT. Default: all, in a complete graph.",
        ),
    ] = None,
) -> None:
    """Admit a client to a run that trains.

    It starts at the weighted mean of its neighbours' models, in the first round after it has connected.

    Example: fedlap admit radon-server east --neighbours north,south=0.5
    """
    check_deploy_extra("admit")
    from fedlap.cli.serve import admit_client

    admit_client(folder, name, neighbours)


def eject_command(
    folder: ServerFolderArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the client.", show_default=False)],
) -> None:
    """Eject a client from a run that trains: its messages are refused from now on.

    Example: fedlap eject radon-server west
    """
    check_deploy_extra("eject")
    from fedlap.cli.serve import eject_client

    eject_client(folder, name)


def status_command(
    folder: ServerFolderArgument,
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
