"""Commands about data sets: list, get and describe."""

from typing import Annotated, Any

import typer

from fedlap.cli.options import CLIENT_OPTIONS, RESULT_OPTIONS, SEED_OPTIONS, add_options


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
