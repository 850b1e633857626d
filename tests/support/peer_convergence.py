"""Faults of eight peers within one process, and how far J(W) is from that of the unbroken run afterwards.

Run as a script, this file plays every fault and writes the table of J into benchmarks/RESULTS.md.
"""

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deployments import simulate, unscale
from fedlap.deploy.moments import standardize_by_moments
from fedlap.deploy.peers.stages import Stage
from fedlap.theory import LaplacianProblem, find_optimum
from peer_networks import PeerNetwork
from peer_plans import build_peer_plan, build_peer_rows
from peer_soak import list_chords

NAMES = "abcdefgh"
COUNTS = (9, 14, 6, 11, 8, 9, 10, 12)
CHORDS = tuple(NAMES[one] + NAMES[other] for one, other in list_chords(len(NAMES)))
# Two rings with a chord each; they share the peer d alone.
CUT_VERTEX = ("ab", "bc", "cd", "da", "ac", "de", "ef", "fg", "gh", "hd", "eg")
BEGIN = 20  # the round in which a fault begins
AFTER = 400  # rounds after it
BOUND = 1e-6  # of |J − J of the unbroken run|
HEADERS = ("fault", "rounds", "J − J of the unbroken run when it ends", f"{AFTER} rounds later", "J − J*")


@dataclass(frozen=True)
class Fault:
    """A fault of `rounds` rounds.

    victims: peers that are killed, and restarted at its end; with what is on their disk, unless `disk` is
    false. half: peers that exchange no message with the others. edges: of the graph, as pairs of letters.
    """

    victims: str = ""
    half: str = ""
    disk: bool = True
    rounds: int = 100
    edges: tuple = CHORDS

    def cuts(self, one, other, sweep):
        """Return whether the link between two peers is broken."""
        return (one in self.half) != (other in self.half)


FAULTS = {
    **{f"{name} is dead": Fault(name) for name in NAMES},
    "d is dead, a cut vertex": Fault("d", edges=CUT_VERTEX),
    "c and d are dead, neighbours": Fault("cd"),
    "c and d lose their disks": Fault("cd", disk=False),
    "a to d hear nothing of e to h": Fault(half="abcd"),
}


@dataclass(frozen=True)
class Aftermath:
    """J minus that of the unbroken run, when a fault ends and in the last round.

    bias: J of the unbroken run minus the least J: that of Algorithm 2 itself. oldest: the age in rounds of
    the oldest model in use, of the ages that the log has (1, 2, 4, …). rejoined: peers that skipped rounds.
    """

    when_it_ends: float
    at_the_end: float
    bias: float
    oldest: int
    rejoined: tuple


def build_fault_plan(folder, fault, rounds, real):
    """Return a plan of eight peers with full batches and strongly convex losses."""
    path = folder / "edges.csv"
    path.write_text("\n".join(["from,to", *(",".join(edge) for edge in fault.edges)]) + "\n")
    return build_peer_plan(
        real, peers={"staleness": "any"}, clients=list(NAMES), rounds=rounds, batch="all", dtype="float64",
        evaluate_every=0, task="fast", graph={"name": "file", "path": str(path)},
        model={"name": "linear", "l2": 0.05}, algorithm={"name": "dfedu", "lr": 0.1},
    )  # fmt: skip


def build_problem(plan, rows):
    """Return J of a plan."""
    federation = standardize_by_moments(unscale(rows), plan.data.scale)
    method = plan.build_algorithm(plan.build_graph(plan.clients))
    return LaplacianProblem.of(method, federation, plan.build_architecture(), batch="all")


def play_fault(folder, fault, after=AFTER, real=False):
    """Run peers with a fault, and compare J with that of the unbroken run of equally many rounds."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = build_fault_plan(folder, fault, BEGIN + fault.rounds + after, real)
    rows = build_peer_rows(real, COUNTS)
    problem, unbroken = build_problem(plan, rows), simulate(plan, rows).models
    assert problem.algorithm.coupling.tolerates_delays
    network = PeerNetwork(folder, plan, rows).reach(BEGIN)
    network.cut = fault.cuts
    for name in fault.victims:
        network.kill(name, fault.disk)
    network.reach(BEGIN + fault.rounds)
    network.cut = lambda one, other, sweep: False
    for name in fault.victims:
        network.start(name)
    network.run_until(lambda: all(run.stage is Stage.TRAINING for run in network.runs.values()))
    reference, when_it_ends = problem.objective(unbroken), problem.objective(network.current)
    network.run()
    return Aftermath(
        when_it_ends=when_it_ends - reference,
        at_the_end=problem.objective(network.models) - reference,
        bias=reference - find_optimum(problem).value,
        oldest=max(facts["rounds_behind"] for facts in network.list_events("stands-in")),
        rejoined=tuple(name for name, event, _ in network.events if event == "rejoined"),
    )


def main():
    """Play all faults and write their table."""
    from benchmarks.results import write_section

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    os.fsync = lambda descriptor: None  # No power is cut here.
    rows = []
    for title, fault in FAULTS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = play_fault(Path(folder), fault)
        numbers = (found.when_it_ends, found.at_the_end, found.bias)
        rows.append([title, str(fault.rounds), *(f"{number:.2g}" for number in numbers)])
        print(" | ".join(rows[-1]), flush=True)
    if options.results:
        about = (
            "eight peers on a ring with chords, or on two rings that share a peer; random rows of 3 classes, "
            "a linear model with l2 = 0.05, 5 local steps with all rows, float64, staleness any; a fault "
            f"begins in round {BEGIN}; `PYTHONPATH=. python tests/support/peer_convergence.py`"
        )
        write_section(options.results, "faults of peers", about, HEADERS, rows)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
