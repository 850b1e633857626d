"""The command that writes a page of results: report."""

import shlex
import webbrowser
from pathlib import Path

from fedlap.cli import console
from fedlap.cli.threads import use_threads
from fedlap.deploy.extra import check_deploy_extra
from fedlap.deploy.peers.storage import PeerStorage, is_peer_folder
from fedlap.deploy.report_sections import REPORT_FOLDER
from fedlap.deploy.run_report import RunRecord, build_run_page
from fedlap.deploy.run_storage import is_server_folder
from fedlap.experiments.find_folder import find_folder
from fedlap.report.page import write_page
from fedlap.report.page.result_folders import load_results
from fedlap.report.page.result_page import build_page

DEFAULT_RUNS_FOLDER = Path("runs")  # where names are looked up, since --out is the folder of the page


def write_report(runs: list[Path], out: Path | None, metric: str | None, open_: bool) -> None:
    """Write a self-contained HTML page of results."""
    use_threads(None)
    chosen = [] if metric is None else ["--metric", metric]
    command = shlex.join(["fedlap", "report", *map(str, runs), *chosen])
    runs = [find_folder(run, DEFAULT_RUNS_FOLDER) for run in runs]
    folder = runs[0] / REPORT_FOLDER if out is None else out
    if len(runs) == 1 and is_server_folder(runs[0]):
        page = build_run_page(RunRecord.read(runs[0]), command, metric)
    elif any(is_peer_folder(run) or PeerStorage(run).read_identity() is not None for run in runs):
        check_deploy_extra("report")  # for the signed changes of edges
        from fedlap.deploy.peers.peers_report import read_peers_page

        page = read_peers_page(runs, command, metric)
    else:
        found = load_results(runs, metric)
        page = build_page(found, command, lambda text: console.print_remark(f"note: {text}"))
    address = write_page(page, folder).resolve().as_uri()
    console.print_result(address)
    if open_ and not webbrowser.open(address):
        console.print_remark("note: no browser found; open the page by its address")
