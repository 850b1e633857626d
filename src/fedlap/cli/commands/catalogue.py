"""Commands that list what there is: algorithms and cite."""

from pathlib import Path
from typing import Annotated

import typer


def algorithms_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Algorithm to explain in full.", show_default=False)
    ] = "",
    data: Annotated[str, typer.Option(metavar="NAME", help="Data set for the byte counts.")] = "digits",
    model: Annotated[str, typer.Option(metavar="NAME", help="Model for the byte counts.")] = "linear",
) -> None:
    """List algorithms and their settings, or explain one.

    Byte counts are measured: upload and download per sampled client in the first round.
    """
    from fedlap.cli.algorithms import list_algorithms

    list_algorithms(name, data, model)


def cite_command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FOLDER", help="Folders of runs, comparisons or sweeps.", show_default=False),
    ] = None,
    data: Annotated[str, typer.Option(metavar="NAMES", help="Data sets (comma-separated).")] = "",
    algorithms: Annotated[
        str, typer.Option(metavar="NAMES", help="Algorithms (comma-separated), or 'all'.")
    ] = "",
) -> None:
    """Print references for algorithms and data sets."""
    from fedlap.cli.cite import print_citations

    print_citations(folders, data, algorithms)
