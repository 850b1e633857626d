"""Commands about data sets: list, get, describe, make and write."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedlap.cli.options import CLIENT_OPTIONS, DATA_PANEL, RESULT_OPTIONS, SEED_OPTIONS, Options, add_options

SIZE_OPTIONS: Options = {
    "clients": (
        Annotated[
            int | None,
            typer.Option(metavar="N", help="Number of clients. Default: 100000.", rich_help_panel=DATA_PANEL),
        ],
        None,
    ),
    "rows": (
        Annotated[
            int | None,
            typer.Option(
                metavar="N",
                help="Mean number of training rows per client. Default: 20.",
                rich_help_panel=DATA_PANEL,
            ),
        ],
        None,
    ),
    "features": (
        Annotated[
            int | None,
            typer.Option(metavar="N", help="Number of features. Default: 10.", rich_help_panel=DATA_PANEL),
        ],
        None,
    ),
    "structure": (
        Annotated[
            str | None,
            typer.Option(
                metavar="NAME",
                help="Neighbours: clusters, ring or geometric. Default: clusters.",
                rich_help_panel=DATA_PANEL,
            ),
        ],
        None,
    ),
    "degree": (
        Annotated[
            int | None,
            typer.Option(
                metavar="N", help="Number of neighbours per client. Default: 10.", rich_help_panel=DATA_PANEL
            ),
        ],
        None,
    ),
}


def data_list_command() -> None:
    """List data sets and partitions with their settings.

    Example: fedlap data list
    """
    from fedlap.cli.data import list_data_sets

    list_data_sets()


def data_get_command(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Data sets to download, or 'all'.", show_default=False)
    ],
) -> None:
    """Download and verify data sets.

    Data sets in the cache are not downloaded again.

    Example: fedlap data get mnist
    """
    from fedlap.cli.data import download_data_sets

    download_data_sets(names)


@add_options(CLIENT_OPTIONS, SEED_OPTIONS, {name: RESULT_OPTIONS[name] for name in ("set", "out", "json")})
def data_describe_command(
    data: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Data set, or your own .csv, .parquet or .npz file.", show_default=False
        ),
    ],
    **options: Any,
) -> None:
    """Describe and plot a data set and its clients.

    Example: fedlap data describe digits --partition dirichlet
    """
    from fedlap.cli.data import describe_data_set

    describe_data_set(data, options)


@add_options(SIZE_OPTIONS, SEED_OPTIONS, {"set": RESULT_OPTIONS["set"]})
def data_make_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write.", show_default=False)],
    **options: Any,
) -> None:
    """Generate a synthetic federation of any size.

    Clients have linear models that are alike at neighbours. The folder has their rows and their graph. Use it
    as --data FOLDER with --graph known; rows are read from it as they are needed.

    Example: fedlap data make large --clients 1000000 --structure geometric
    """
    from fedlap.cli.data import make_federation

    make_federation(folder, options)


@add_options(CLIENT_OPTIONS, SEED_OPTIONS, {"set": RESULT_OPTIONS["set"]})
def data_write_command(
    data: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Data set, or your own .csv, .parquet or .npz file.", show_default=False
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write.", show_default=False)],
    **options: Any,
) -> None:
    """Write a data set, divided among its clients, into a folder.

    Use it as --data FOLDER: a run reads rows from it as they are needed, and workers map their shards. The
    folder has the names of the clients, training and test rows, weights, places, and the graph of data that
    have one (--graph known).

    Example: fedlap data write visits.csv visits --client clinic --label outcome
    """
    from fedlap.cli.data import write_data_set

    write_data_set(data, folder, options)
