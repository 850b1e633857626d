"""The command that writes a page of results: report."""

import shlex
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli import console
from fedlap.cli.options import OUTPUT_PANEL
from fedlap.cli.threads import use_threads
from fedlap.report.page import write_page
from fedlap.report.page.result_folders import load_results
from fedlap.report.page.result_page import build_page


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Folders of runs, or one folder of compare, sweep or tune.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the page. Default: `report` in the first RUN.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    open_: Annotated[
        bool,
        typer.Option("--open", metavar="", help="Open the page in a browser.", rich_help_panel=OUTPUT_PANEL),
    ] = False,
) -> None:
    """Write a self-contained HTML page of results.

    The page shows tables, curves, clients, the graph and settings. The folder also gets the tables as .md,
    .csv and .tex and the figures as .png and .pdf.
    """
    use_threads(None)
    found = load_results(runs)
    folder = runs[0] / "report" if out is None else out
    command = shlex.join(["fedlap", "report", *map(str, runs)])
    page = build_page(found, command, lambda text: console.print_remark(f"note: {text}"))
    address = write_page(page, folder).resolve().as_uri()
    console.print_result(address)
    if open_ and not webbrowser.open(address):
        console.print_remark("note: no browser found; open the page by its address")
