"""The page of a run between machines, from the files in the server's folder."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedlap.algorithms import ClientTable
from fedlap.deploy.moments import CONSTANT_TYPES
from fedlap.deploy.plan import Plan
from fedlap.deploy.report_sections import (
    REPORT_FOLDER,
    ClientLine,
    build_client_table,
    build_plan_facts,
    build_score_curves,
    choose_lead_score,
)
from fedlap.deploy.run_storage import RunStorage, ServerCheckpoint
from fedlap.deploy.setup import decode_graph, digest_setup
from fedlap.report.comparison import format_bytes
from fedlap.report.page import (
    FactsSection,
    Page,
    PageSection,
    Records,
    TableCell,
    TableSection,
    TextSection,
    write_page,
)
from fedlap.report.page.client_figures import build_graph_sections
from fedlap.report.page.result_sections import format_setting
from fedlap.report.page.sections import RecordValue
from fedlap.training.scores import Score
from fedlap.training.state_bytes import list_state_types

SETUP_DIGITS: Final = 16  # of digests


@dataclass(frozen=True)
class RunRecord:
    """A run as its files describe it; `clients` has rows and scores of the last scored round."""

    plan: Plan
    setups: Sequence[Mapping[str, Any]]
    checkpoint: ServerCheckpoint
    scores: Sequence[Score]
    scored_round: int
    clients: Mapping[str, Mapping[str, float | None]]

    @staticmethod
    def read(folder: Path) -> "RunRecord":
        """Read the folder of a server; raise InputError if its run has not started."""
        storage = RunStorage(folder)
        plan = Plan.of(storage.read_plan())
        types = [*list_state_types(plan.method_class), ClientTable, *CONSTANT_TYPES]
        stored = storage.read_setups(plan.digest, types)
        setups = [] if stored is None else stored[0]
        checkpoint = storage.read_checkpoint(types) or ServerCheckpoint(0, None)
        scored_round, clients = storage.read_client_scores()
        return RunRecord(
            plan, setups, checkpoint, storage.read_scores(checkpoint.round), scored_round, clients
        )

    @property
    def roster(self) -> dict[str, int]:
        """Training rows of every client that has taken part, by name; those who left are last."""
        rows: dict[str, int] = {}
        for setup in reversed(self.setups):
            for name, count in zip(setup["clients"], setup["counts"], strict=True):
                rows.setdefault(name, count)
        return rows


def write_run_report(folder: Path) -> Path:
    """Write the page of a run into `report` in the server's folder; return the page's path."""
    command = shlex.join(["fedlap", "report", str(folder)])
    return write_page(build_run_page(RunRecord.read(folder), command), folder / REPORT_FOLDER)


def build_run_page(run: RunRecord, command: str, metric: str | None = None) -> Page:
    """Build the page: curves of scores, a table of clients, the graph with its versions, and the plan."""
    plan, (chosen, last) = run.plan, choose_lead_score(run.scores, metric)
    current = len(run.setups[-1]["clients"]) if run.setups else 0
    left = f" and {len(run.roster) - current} that left" if len(run.roster) > current else ""
    lead = f"Round {run.checkpoint.round} of {plan.rounds}, {current} clients{left}.{last}"
    sections: list[PageSection] = []
    if chosen is not None and len(run.scores) > 1:
        about = "Scores after each evaluated round, from counts and sums that the clients sent."
        changes = [str(setup["first_round"]) for setup in run.setups[1:]]
        if changes:
            about += f" Other clients, and so other rows, are scored from round {', '.join(changes)} on."
        sections.append(build_score_curves(run.scores, chosen, about))
    sections += [build_roster_table(run), build_traffic(run), build_version_table(run)]
    if run.setups:
        newest = run.setups[-1]
        graph = decode_graph(newest["graph"], newest["clients"])
        sections += build_graph_sections(f"version {newest['version']}", graph, None, "")
    sections.append(build_plan_facts(plan))
    return Page(f"{plan.name}: {plan.algorithm['name']} between machines", lead, sections, command)


def build_roster_table(run: RunRecord) -> TableSection:
    """Build a line per client: rows, scores of its last tally, rounds that it missed, and messages."""
    current = run.setups[-1]["clients"] if run.setups else []
    lines = []
    for name, train_rows in run.roster.items():
        up, down = run.checkpoint.traffic.get(name, (0, 0))
        counts = {"rounds_left_out": run.checkpoint.left_out.get(name, 0)}
        note = "" if name in current else "has left"
        lines.append(ClientLine(name, train_rows, run.clients.get(name, {}), up, down, counts, note))
    when = f" after round {run.scored_round}" if run.scored_round else ""
    about = (
        f"Test scores of each client's model{when}, rounds in which it was sampled and its reply did not "
        "count, and bytes of its messages."
    )
    return build_client_table(lines, about, columns={"rounds_left_out": "rounds left out"})


def build_traffic(run: RunRecord) -> FactsSection | TextSection:
    """Build the traffic of the run: states as a simulation counts them, and messages as they were sent."""
    checkpoint = run.checkpoint
    if not checkpoint.round:
        return TextSection("Traffic", ["No round is merged yet."])
    up, down = (sum(client[side] for client in checkpoint.traffic.values()) for side in (0, 1))
    per_round = 1000 * checkpoint.seconds / checkpoint.round
    return FactsSection(
        "Traffic",
        [
            ("merged rounds", f"{checkpoint.round:,}"),
            ("time per round, ms", f"{per_round:.1f}"),
            ("models and updates up", format_bytes(checkpoint.bytes_up)),
            ("models and updates down", format_bytes(checkpoint.bytes_down)),
            ("all messages up", format_bytes(up)),
            ("all messages down", format_bytes(down)),
        ],
    )


def build_version_table(run: RunRecord) -> TableSection:
    """Build a line per version of the graph: from when it is in force, and its digest."""
    rows, records = [], list[list[RecordValue]]()
    for setup in run.setups:
        digest, settings = digest_setup(setup), setup["settings"]
        clients, edges = len(setup["clients"]), len(setup["graph"]["edges"])
        numbers = [str(setup["version"]), str(setup["first_round"]), f"{clients:,}", f"{edges:,}"]
        cells = [*numbers, format_setting(settings) or "–", digest[:SETUP_DIGITS]]
        rows.append([TableCell(text) for text in cells])
        records.append([setup["version"], setup["first_round"], clients, edges, digest])
    return TableSection(
        "Versions of the graph",
        "Every client that joins, leaves or is ejected gives the graph a new version, in force from the "
        "stated round.",
        "versions",
        ["version", "from round", "clients", "edges", "settings that follow from the data", "digest"],
        rows,
        records=Records(["version", "first_round", "clients", "edges", "digest"], records),
    )
