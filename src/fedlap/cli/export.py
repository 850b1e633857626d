"""The command that writes one client's model to files: export."""

from pathlib import Path

from fedlap.cli import console
from fedlap.cli.output_files import check_output, list_run_files
from fedlap.experiments.find_folder import find_folder
from fedlap.experiments.stored_run import load_trained_models


def export_model(run: Path, client: str, to: Path, out: Path) -> None:
    """Export one client's model to a .safetensors file."""
    folder = find_folder(run, out)
    trained = load_trained_models(folder)
    check_output(to, list_run_files(folder))
    check_output(to.with_suffix(".json"), list_run_files(folder))
    trained.of_client(client).save(to)
    console.print_result(
        f"client {client}: parameters in {to}, their description in {to.with_suffix('.json')}"
    )
