"""Commands that list what there is: algorithms and cite."""

from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli.completion import complete_names
from fedlap.cli.names import ALGORITHM_NAMES, DATA_NAMES
from fedlap.cli.options import RunsFolderOption


def algorithms_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAMES", help="Algorithms to explain in full (comma-separated).", show_default=False
        ),
    ] = "",
    data: Annotated[str, typer.Option(metavar="NAME", help="Data set for the byte counts.")] = "digits",
    model: Annotated[str, typer.Option(metavar="NAME", help="Model for the byte counts.")] = "linear",
) -> None:
    """List algorithms and their settings, or explain some.

    Byte counts are measured: upload and download per sampled client in the first round.

    Example: fedlap algorithms scaffold
    """
    from fedlap.cli.algorithms import list_algorithms

    list_algorithms(name, data, model)


def cite_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Algorithms, data sets, runs, comparisons or sweeps.",
            show_default=False,
            autocompletion=complete_names((*ALGORITHM_NAMES, *DATA_NAMES)),
        ),
    ] = None,
    data: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Data sets (comma-separated).",
            autocompletion=complete_names(DATA_NAMES),
        ),
    ] = "",
    algorithms: Annotated[
        str, typer.Option(metavar="NAMES", help="Algorithms (comma-separated), or 'all'.")
    ] = "",
    as_text: Annotated[
        bool, typer.Option("--text", metavar="", help="Print plain text instead of BibTeX.")
    ] = False,
    out: RunsFolderOption = Path("runs"),
) -> None:
    """Print references as BibTeX: fedlap, its paper, algorithms and data sets.

    Example: fedlap cite fedu mocha har
    """
    from fedlap.cli.cite import print_citations

    print_citations(words or [], data, algorithms, as_text, out)
