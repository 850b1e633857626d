"""Train peers in lock step while messages are lost, and compare J by round with J without losses.

The rounds are those of `fedlap peer` (`deploy/peers/peer.py`) in one process, without bytes or disks.
Whether a message is lost is a function of the seed, the edge, the round and the attempt. A round continues
with the last model of a neighbour whose message is lost if that is not older than `staleness` rounds;
otherwise the peer asks again. Full batches, float64. Nothing is timed.

    python -m benchmarks.lost_messages [--rounds 800] [--results benchmarks/RESULTS.md]

With --results the curves are drawn into docs/images.
"""

import argparse
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fedlap as fl
from benchmarks.results import write_section
from fedlap.deploy.peers.neighbours import START, Neighbour
from fedlap.deploy.peers.peer import Peer
from fedlap.deploy.plan import Plan
from fedlap.deploy.setup import Setup
from fedlap.randomness import digest_name, draws
from fedlap.report.page.matplotlib_figures import render_figures
from fedlap.report.page.sections import CurveSeries, FigureSection, Panel
from fedlap.theory import LaplacianProblem, find_optimum
from fedlap.training.worker import Worker

SHARES = (0.0, 0.1, 0.3, 0.5)
STALENESS = (1, 5, "any")
EVERY = 5  # rounds between values of J
CLOSE = 1e-6  # |J − J without losses| from which on a run counts as converged
DEADLINE = 0.5  # of a clock that ticks once per attempt
SEED = 0
L2, LR = 0.05, 0.1
STRENGTH = 0.5  # with μRηd = 1, the largest that the theorem on late models covers
BRIGHTEST = 16.0  # value of a pixel
FIGURE = Path("docs/images/lost-messages.png")
LEAST = 1e-12  # of a difference of J that is drawn; rounding errors are smaller
HEADERS = (
    "staleness", "share", "messages lost", "old models in use", "oldest, rounds",
    "J − J* after 1/8 of the rounds", "half", "all", "J − J without losses",
    f"rounds until this stays below {CLOSE:g}",
)  # fmt: skip


@dataclass
class Losses:
    """Messages between peers, of which a share is lost; how many were, and the ages of the models in use."""

    share: float
    seed: int = SEED
    attempts: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    lost: int = 0
    ages: Counter[int] = field(default_factory=Counter)

    def lose(self, sender: str, receiver: str, round: int) -> bool:
        """Return whether the next attempt to send the message of a round is lost."""
        edge = sender, receiver, round
        is_lost = draw_number(self.seed, *edge, self.attempts[edge]) < self.share
        self.attempts[edge] += 1
        self.lost += is_lost
        return is_lost


@dataclass(frozen=True)
class Curve:
    """J by round, the least J, and what was lost."""

    values: Mapping[int, float]
    best: float
    losses: Losses

    def subtract(self, other: "Curve") -> dict[int, float]:
        """Return the differences between J of this run and of another one."""
        return {round: value - other.values[round] for round, value in self.values.items()}


def draw_number(seed: int, sender: str, receiver: str, round: int, attempt: int) -> float:
    """Draw a number between 0 and 1 for an attempt to send the message of a round over an edge."""
    return float(draws(seed, "coin", round).uniform(digest_name(f"{sender} {receiver}"), attempt, 1))


def load_clients() -> fl.Federation:
    """Return the clients of digits: flat training rows with pixels from 0 to 1."""
    federation = fl.data.load("digits", partition=fl.partition.Labels(8, 3), scale="none")
    arrays = {}
    for place, name in enumerate(federation.clients):
        x, y = federation.train.client(place)
        arrays[name] = x.flatten(1).numpy() / BRIGHTEST, y.numpy()
    labels = list(federation.labels or ())
    return fl.Federation.from_arrays(arrays, test_share=0, labels=labels, scale="none")


def keep_client(federation: fl.Federation, place: int) -> fl.Federation:
    """Return a federation of one client, with its training rows alone."""
    x, y = federation.train.client(place)
    rows = {federation.clients[place]: (x.numpy(), y.numpy())}
    return fl.Federation.from_arrays(rows, test_share=0, labels=list(federation.labels or ()), scale="none")


def build_plan(federation: fl.Federation, rounds: int, staleness: int | str) -> Plan:
    """Return the plan of a run: a ring with two neighbours on each side."""
    names = federation.clients
    return Plan.of({
        "name": "lost-messages", "clients": list(names), "rounds": rounds, "batch": "all", "dtype": "float64",
        "data": {
            "label": "label", "features": [f"x{place}" for place in range(math.prod(federation.inputs))],
            "task": "classification", "labels": list(federation.labels or ()),
        },
        "model": {"name": "linear", "l2": L2}, "algorithm": {"name": "dfedu", "lr": LR, "strength": STRENGTH},
        "graph": {"name": "watts-strogatz", "neighbours": 4, "rewire": 0.0},
        "peers": {
            "addresses": {name: f"127.0.0.1:{7001 + place}" for place, name in enumerate(names)},
            "staleness": staleness, "deadline": DEADLINE,
        },
    })  # fmt: skip


def build_peers(federation: fl.Federation, plan: Plan) -> tuple[list[Peer], Setup]:
    """Return the peers of a plan before the first round."""
    names, graph = federation.clients, plan.build_graph(federation.clients)
    setup = Setup.of(plan, names, federation.train.count.tolist(), graph, 1, 1)
    peers = []
    for place in range(len(names)):
        worker = Worker(
            setup.algorithm, keep_client(federation, place), plan.build_architecture(), setup.roster,
            seed=plan.seed, batch=plan.batch, dtype=plan.dtype, fast=True,
        )  # fmt: skip
        others, weights = graph.weights.neighbours(place)
        start = setup.build_start()[:1]
        neighbours = [
            Neighbour(names[other], weight, {START: start})
            for other, weight in zip(others.tolist(), weights.tolist(), strict=True)
        ]
        peers.append(Peer(plan, worker, neighbours, ignore_event, setup.upload_shapes))
    return peers, setup


def ignore_event(event: str, **facts: Any) -> None:
    """Log nothing."""


def train(peers: Sequence[Peer], names: Sequence[str], losses: Losses) -> list[Tensor]:
    """Train all peers and return their models after each round of their own."""
    known, now = dict(zip(names, peers, strict=True)), 0.0
    models: list[dict[str, Tensor]] = [{} for _ in range(peers[0].plan.rounds)]
    while not all(peer.is_done for peer in peers):
        now += 1.0
        for peer in peers:
            if peer.turn is None and not peer.is_done:
                peer.publish(peer.begin()(), now)
        for name, peer in known.items():
            for other in peer.neighbours:
                if peer.turn is not None and peer.turn not in peer.neighbours[other].models:
                    ask(known[other], other, peer, name, losses)
        for name, peer in known.items():
            if peer.is_ready(now + 2 * DEADLINE):
                turn = peer.turn
                assert turn is not None
                losses.ages.update(one.count_age(turn) for one in peer.neighbours.values())
                peer.mix(now)
                models[peer.round - 1][name] = peer.worker.personal_model(None).clone()
    return [torch.cat([found[name] for name in names]) for found in models]


def ask(holder: Peer, sender: str, asker: Peer, receiver: str, losses: Losses) -> None:
    """Ask a neighbour for its model, which may be lost."""
    wanted, newest = asker.choose_wanted(sender), asker.neighbours[sender].newest
    assert wanted is not None
    found = holder.find_answer(receiver, wanted, newest)
    if found is None:
        return
    turn, base, message = found
    if not losses.lose(sender, receiver, turn.round):
        refused = asker.take(sender, turn, message, base)
        assert refused is None, refused


def measure(federation: fl.Federation, rounds: int) -> dict[tuple[int | str, float], Curve]:
    """Return the curves of all runs by staleness and share of lost messages."""
    curves = {}
    for staleness in STALENESS:
        for share in SHARES:
            peers, setup = build_peers(federation, build_plan(federation, rounds, staleness))
            losses = Losses(share)
            models = train(peers, federation.clients, losses)
            problem = LaplacianProblem.of(
                setup.algorithm, federation, setup.plan.build_architecture(), batch="all"
            )
            values = {
                round: problem.objective(models[round - 1].double())
                for round in range(1, rounds + 1)
                if round == 1 or round % EVERY == 0
            }
            curves[staleness, share] = Curve(values, find_optimum(problem).value, losses)
            print(staleness, share, losses.lost, values[rounds], flush=True)
    return curves


def describe(staleness: int | str, share: float, curve: Curve, plain: Curve) -> list[str]:
    """Return the cells of a row. plain: the run without losses."""
    losses, last = curve.losses, max(curve.values)
    used, attempts = sum(losses.ages.values()), sum(losses.attempts.values())
    gaps = [curve.values[last // part] - curve.best for part in (8, 2, 1)]
    differences = curve.subtract(plain)
    apart = [round for round, value in differences.items() if abs(value) > CLOSE]
    first_close = f"more than {last}" if last in apart else f"{max(apart, default=0) + EVERY}"
    return [
        str(staleness),
        f"{100 * share:.0f} %",
        f"{losses.lost:,} of {attempts:,}",
        f"{100 * (1 - losses.ages[0] / used):.1f} %",
        str(max(losses.ages)),
        *(f"{gap:.6g}" for gap in gaps),
        *((f"{differences[last]:+.1g}", first_close) if share else ("", "")),
    ]


def draw(curves: Mapping[tuple[int | str, float], Curve]) -> bytes:
    """Draw J − J*, and how far it is from that without losses, by round; one column per staleness."""
    panels = []
    for title in ("J − J*", "|J − J without losses|"):
        for staleness in STALENESS:
            plain = curves[staleness, SHARES[0]]
            series = []
            for share in SHARES:
                curve = curves[staleness, share]
                if title == "J − J*":
                    heights = {round: value - curve.best for round, value in curve.values.items()}
                else:
                    heights = {round: abs(value) for round, value in curve.subtract(plain).items()}
                drawn = {round: height for round, height in heights.items() if height >= LEAST}
                if drawn:
                    name = f"{100 * share:.0f} % lost"
                    series.append(CurveSeries(name, list(map(float, drawn)), list(drawn.values())))
            panels.append(Panel(f"{title}, staleness {staleness}", "round", "", series, log_y=True))
    places = {f"{100 * share:.0f} % lost": place for place, share in enumerate(SHARES)}
    return render_figures(FigureSection("", "", "lost-messages", panels), places)["png"]


def main() -> int:
    """Measure, print and, with --results, write the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    federation = load_clients()
    curves = measure(federation, options.rounds)
    rows = [describe(*key, curve, curves[key[0], SHARES[0]]) for key, curve in curves.items()]
    for row in rows:
        print(" | ".join(row))
    if options.results:
        about = (
            "digits, 8 clients with 3 labels each, two neighbours on each side of a ring; linear models with "
            f"l2 = {L2:g}, 5 local steps with all rows, lr = {LR:g}, strength {STRENGTH:g}, float64, "
            f"{options.rounds} rounds; losses by seed {SEED}, edge, round and attempt; "
            "`python -m benchmarks.lost_messages`"
        )
        write_section(options.results, "lost messages", about, HEADERS, rows)
        FIGURE.write_bytes(draw(curves))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
