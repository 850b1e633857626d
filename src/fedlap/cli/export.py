"""The command that writes one client's model to files: export."""

from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli import console
from fedlap.cli.options import OUTPUT_PANEL, RunFolderArgument, RunsFolderOption
from fedlap.cli.output_files import check_output, list_run_files
from fedlap.experiments.find_folder import find_folder
from fedlap.experiments.stored_run import load_trained_models


def export_command(
    run: RunFolderArgument,
    client: Annotated[
        str, typer.Option(metavar="NAME", help="Client whose model is exported.", show_default=False)
    ],
    to: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Model file to write. Its description goes into a .json file of the same name.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = Path("model.safetensors"),
    out: RunsFolderOption = Path("runs"),
) -> None:
    """Export one client's model to a .safetensors file.

    The .safetensors and .json files contain everything that `fedlap predict` needs.
    """
    folder = find_folder(run, out)
    trained = load_trained_models(folder)
    check_output(to, list_run_files(folder))
    check_output(to.with_suffix(".json"), list_run_files(folder))
    trained.of_client(client).save(to)
    console.print_result(
        f"client {client}: parameters in {to}, their description in {to.with_suffix('.json')}"
    )
