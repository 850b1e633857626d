"""Commands of training between machines: serve, client, peer, check, status, admit and eject."""

import math
from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli.options import DATA_PANEL, OUTPUT_PANEL, JsonOption
from fedlap.cli.site_options import (
    CHANGES_PANEL,
    CONNECTION_PANEL,
    ClientFolderOption,
    ColumnsOption,
    DataOption,
    ForgetOption,
    InsecureOption,
    KeysOption,
    LabelOption,
    ListenOption,
    ModelOnlyOption,
    NameOption,
    ServerOption,
    SiteFolderArgument,
)
from fedlap.deploy.extra import check_deploy_extra


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
    server: ServerOption = None,
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
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="Give up after this time without an answer of the server. Default: never.",
            rich_help_panel=CONNECTION_PANEL,
            show_default=False,
        ),
    ] = math.inf,
    leave: Annotated[
        bool, typer.Option("--leave", metavar="", help="Leave the run for good, and end.")
    ] = False,
    model_only: ModelOnlyOption = None,
    forget: ForgetOption = False,
) -> None:
    """Take part in a run: ask the server for work, train on local rows, and answer.

    Rows and private state stay in this process and its folder. A client that is started again continues.
    SIGTERM stops it after its round.

    Example: fedlap client --name north --data my.csv --server fed.example.org:7447 --keys keys/client-north
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
        patience,
        leave=leave,
        model=model_only,
        forget=forget,
    )


def peer_command(
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="Plan of the run (.toml), the same at all peers.", show_default=False
        ),
    ],
    name: NameOption,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File of this peer's rows: .csv or .parquet.", rich_help_panel=DATA_PANEL
        ),
    ] = None,
    label: LabelOption = None,
    client: ColumnsOption = None,
    listen: ListenOption = None,
    keys: KeysOption = None,
    insecure: InsecureOption = False,
    folder: ClientFolderOption = None,
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="Give up after this time without a word of any neighbour, at least the plan's deadline. "
            "Default: never.",
            rich_help_panel=CONNECTION_PANEL,
            show_default=False,
        ),
    ] = math.inf,
    leave: Annotated[
        bool,
        typer.Option(
            "--leave", metavar="", help="Leave the run for good, and end.", rich_help_panel=CHANGES_PANEL
        ),
    ] = False,
    request_join: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a newcomer's signed request to join, and end.",
            rich_help_panel=CHANGES_PANEL,
        ),
    ] = None,
    neighbours: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Neighbours of the newcomer (comma-separated), each NAME or NAME=WEIGHT.",
            rich_help_panel=CHANGES_PANEL,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address at which others dial the newcomer, if they can.",
            rich_help_panel=CHANGES_PANEL,
        ),
    ] = None,
    join: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Join with a request that the neighbours have admitted.",
            rich_help_panel=CHANGES_PANEL,
        ),
    ] = None,
    model_only: ModelOnlyOption = None,
    forget: ForgetOption = False,
) -> None:
    """Take part in a run without a server: train on local rows, and exchange models with neighbours.

    Rows stay in this process and its folder. A peer that is started again continues where its neighbours are.
    SIGTERM stops it.

    Example: fedlap peer plan.toml --name north --data my.csv --keys keys/peer-north
    """
    check_deploy_extra("peer")
    from fedlap.cli.peer import choose_peer_action
    from fedlap.cli.site_client import split_columns

    choose_peer_action(
        plan, name, data, label, split_columns(client), listen, keys, insecure, folder, patience,
        leave=leave, model=model_only, forget=forget, join=join, request_join=request_join,
        neighbours=neighbours, address=address,
    )  # fmt: skip


def check_command(
    name: NameOption,
    data: DataOption,
    server: ServerOption = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="PLAN",
            help="Plan of a run without a server: checks every edge of this peer.",
            rich_help_panel=CONNECTION_PANEL,
        ),
    ] = None,
    label: LabelOption = None,
    client: ColumnsOption = None,
    listen: ListenOption = None,
    wait: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Time in which neighbours of a peer can get ready. Default: 20.",
            rich_help_panel=CONNECTION_PANEL,
        ),
    ] = None,
    keys: KeysOption = None,
    insecure: InsecureOption = False,
    folder: ClientFolderOption = None,
) -> None:
    """Check connection, certificate, versions, clock, disk and data before a run.

    Prints one line per check, and the bytes and seconds that the messages of a round take. Only shapes leave.
    With --plan, a peer prints one line per neighbour. A neighbour answers while it checks, too, or while it
    waits for the first round.

    Example: fedlap check --name north --data my.csv --server fed.example.org:7447 --keys keys/client-north
    """
    check_deploy_extra("check")
    from fedlap.cli.checks import check_site

    check_site(name, data, label, client, server, plan, listen, wait, keys, folder, insecure)


def admit_command(
    folder: SiteFolderArgument,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the new client, or its request (.json).", show_default=False
        ),
    ],
    neighbours: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Neighbours (comma-separated), each NAME or NAME=WEIGHT. Default: all, in a complete graph.",
        ),
    ] = None,
) -> None:
    """Admit a client to a run that trains.

    It starts at the weighted mean of its neighbours' models, in the first round after it has connected. In a
    run without a server, every neighbour of the newcomer admits the file of its request (fedlap peer).

    Example: fedlap admit radon-server east --neighbours north,south=0.5
    """
    check_deploy_extra("admit")
    from fedlap.deploy.peers.storage import is_peer_folder

    if name.endswith(".json") or is_peer_folder(folder):
        from fedlap.cli.peer import admit_newcomer

        admit_newcomer(folder, Path(name), neighbours)
        return
    from fedlap.cli.serve import admit_client

    admit_client(folder, name, neighbours)


def eject_command(
    folder: SiteFolderArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the client.", show_default=False)],
) -> None:
    """Eject a client from a run that trains: its messages are refused from now on.

    In a run without a server, each neighbour ejects for itself, with the folder of its peer.

    Example: fedlap eject radon-server west
    """
    check_deploy_extra("eject")
    from fedlap.deploy.run_storage import is_server_folder

    if is_server_folder(folder):
        from fedlap.cli.serve import eject_client

        eject_client(folder, name)
        return
    from fedlap.cli.peer import eject_neighbour

    eject_neighbour(folder, name)


def status_command(
    folder: SiteFolderArgument,
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
    """Show the round, the clients, bytes and scores of a server, or a peer and its neighbours.

    The server or peer replaces the file status.json in its folder about once per second. This command only
    reads that file: run it on the same machine, as the same user.

    Example: fedlap status radon-minnesota --watch
    """
    from fedlap.cli.status import show_status

    show_status(folder, watch, as_json)
