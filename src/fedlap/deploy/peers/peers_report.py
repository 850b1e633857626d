"""The page of a run without a server, from the folders of its peers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fedlap.deploy.peers.run_record import EdgeRecord, PeersRecord
from fedlap.deploy.report_sections import (
    ClientLine,
    build_client_table,
    build_plan_facts,
    build_score_curves,
    choose_lead_score,
)
from fedlap.deploy.score_sums import list_client_scores
from fedlap.errors import InputError
from fedlap.report.comparison import format_bytes
from fedlap.report.page import FactsSection, Page, PageSection, Records, TableCell, TableSection
from fedlap.report.page.client_figures import build_graph_sections
from fedlap.report.page.sections import RecordValue

MOST_EDGE_LINES: Final = 200  # lines in the table of edges; the CSV file has all
MOST_LISTED: Final = 8  # in a sentence


def build_peers_page(run: PeersRecord, command: str, metric: str | None = None) -> Page:
    """Build the page: curves of scores, the peers, the edges with their changes, and the plan."""
    chosen, last = choose_lead_score(run.scores, metric)
    sections: list[PageSection] = []
    if chosen is not None and len(run.scores) > 1:
        about = f"Scores from counts and sums of {_count(len(run.peers), 'peer')}, added without any row."
        sections.append(build_score_curves(run.scores, chosen, about + describe_gaps(run)))
    sections += [list_peers(run), build_edge_table(run), build_totals(run)]
    graph = run.build_final_setup().graph
    if graph.edges:
        sections += build_graph_sections("the last round", graph, None, "")
    sections.append(build_plan_facts(run.plan))
    title = f"{run.plan.name}: {run.plan.algorithm['name']} between peers"
    return Page(title, summarise_peers(run) + last, sections, command)


def summarise_peers(run: PeersRecord) -> str:
    """Return the rounds of the peers, their number, and the missing folders."""
    rounds = sorted({peer.round for peer in run.peers.values()})
    reached = f"Round {rounds[0]}" if len(rounds) == 1 else f"Rounds {rounds[0]} to {rounds[-1]}"
    text = f"{reached} of {run.plan.rounds}, {_count(len(run.peers), 'peer')}."
    if run.missing:
        text += f" Without a folder here: {_list_names(run.missing)}."
    return text


def describe_gaps(run: PeersRecord) -> str:
    """Return a sentence on scored rounds that are left out, since the sums of a peer are missing."""
    gaps = {round: missing for round, missing in run.list_scored_rounds() if missing}
    if not gaps:
        return ""
    names = dict.fromkeys(name for missing in gaps.values() for name in missing)
    rounds = ", ".join(map(str, list(gaps)[:MOST_LISTED])) + (", …" if len(gaps) > MOST_LISTED else "")
    return f" Not scored by all of them, and left out: round {rounds} ({_list_names(list(names))})."


def list_peers(run: PeersRecord) -> TableSection:
    """Build a line per peer: rows, scores, its last round, models that stood in, and bytes."""
    scored = run.scores[-1].round if run.scores else 0
    lines = []
    for name, peer in run.peers.items():
        near = [
            edge.other if edge.one == name else edge.one
            for edge in run.edges
            if name in (edge.one, edge.other)
        ]
        late = sum(run.count_late(other, name) for other in near)
        sent = peer.former_bytes[0] + sum(run.count_sent(name, other) for other in peer.neighbours)
        tally = peer.tallies.get(scored)
        scores = {} if tally is None else list_client_scores({name: tally.tally})[name]
        note = "has left" if name not in run.current else ""
        counts = {"round": peer.round, "rounds_late": late}
        lines.append(ClientLine(name, peer.train_rows, scores, sent, peer.received, counts, note))
    when = f" after round {scored}" if scored else ""
    about = (
        f"Test scores of each peer's model{when}, its last round, rounds in which an older model of a "
        "neighbour stood in (summed over its neighbours), and bytes of models."
    )
    return build_client_table(lines, about, "peer", {"round": "round", "rounds_late": "late models"})


def build_edge_table(run: PeersRecord) -> TableSection:
    """Build a line per edge: its weight, its changes, and the models that went over it."""
    changed = sorted(run.edges, key=lambda edge: not edge.changes)  # changed ones first
    rows = [_list_edge_cells(run, edge) for edge in changed[:MOST_EDGE_LINES]]
    records: list[list[RecordValue]] = [
        [
            edge.one,
            edge.other,
            edge.weight,
            edge.removed,
            run.count_sent(edge.one, edge.other),
            run.count_sent(edge.other, edge.one),
            run.count_late(edge.one, edge.other),
            run.count_late(edge.other, edge.one),
        ]
        for edge in run.edges
    ]
    more = f" The first {MOST_EDGE_LINES} of {len(run.edges):,}." if len(run.edges) > MOST_EDGE_LINES else ""
    return TableSection(
        "Edges",
        "Bytes of models that went each way, and rounds in which an older model of one end stood in at the "
        f"other. An edge is in force as long as both its ends have it.{more}",
        "edges",
        ["edge", "weight", "bytes →", "bytes ←", "late →", "late ←", "changes"],
        rows,
        records=Records(
            ["one", "other", "weight", "removed_in_round", "bytes_from_one", "bytes_from_other",
             "late_models_of_one", "late_models_of_other"],
            records,
        ),
    )  # fmt: skip


def _list_edge_cells(run: PeersRecord, edge: EdgeRecord) -> list[TableCell]:
    one, other = edge.one, edge.other
    texts = [
        f"{edge.weight:g}",
        format_bytes(run.count_sent(one, other)),
        format_bytes(run.count_sent(other, one)),
    ]
    texts += [f"{run.count_late(one, other):,}", f"{run.count_late(other, one):,}"]
    changes = "; ".join(f"round {round}: {words}" for round, words in edge.changes)
    name = TableCell(f"{one} – {other}", "" if edge.removed is None else f"removed from round {edge.removed}")
    return [name, *map(TableCell, texts), TableCell(changes, wraps=True)]


def build_totals(run: PeersRecord) -> FactsSection:
    """Build the objective of the last models and the bytes of all models."""
    rounds = {peer.round for peer in run.peers.values()}
    reason = run.explain_no_objective(max(rounds))
    found = [score.objective for score in run.scores if score.objective is not None]
    received = sum(peer.received for peer in run.peers.values())
    if not reason and not found:
        reason = "the last round is not scored yet"
    return FactsSection(
        "Objective and traffic",
        [
            ("J(W) of the last models", f"{found[-1]:.10g}" if found else f"not known: {reason}"),
            ("edges in force", f"{sum(edge.removed is None for edge in run.edges):,}"),
            ("models received", format_bytes(received)),
        ],
    )


def read_peers_page(folders: Sequence[Path], command: str, metric: str | None = None) -> Page:
    """Read the folders of peers and build their page; raise InputError if no peer has finished a round."""
    run = PeersRecord.read(folders)
    if not any(peer.round for peer in run.peers.values()):
        raise InputError("no peer has finished a round; report the run later")
    return build_peers_page(run, command, metric)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_LISTED]) + (
        f" and {len(names) - MOST_LISTED} others" if len(names) > MOST_LISTED else ""
    )
