"""Eight peers on this machine, with certificates and without a server: radon, split by the compass.

Each peer is a process of its own with its own rows, key and folder, and talks to three neighbours: a ring
with chords to the opposite side. The first run is undisturbed. In the second one, a peer is killed and
started again.
Usage: python demo_peers.py [FOLDER]
"""

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pandas
import torch
from local_processes import (
    HOST,
    MOST_SECONDS,
    Process,
    check_running,
    create_keys,
    end_all,
    find_free_ports,
    start_command,
)
from split_radon import POINTS, split_compass

import fedlap as fl
from fedlap.deploy.event_log import read_events
from fedlap.deploy.moments import standardize_by_moments
from fedlap.deploy.peers.peers_report import read_peers_page
from fedlap.deploy.peers.run_record import PeersRecord
from fedlap.deploy.plan import Plan
from fedlap.personal import Personal
from fedlap.report.page import write_page

VICTIM = "southeast"
KILLED_IN_ROUND = 30
PATIENCE = 0.5  # seconds that a round waits for a late model, far less than the start of a process takes
PLAN = """\
name = "radon-{run}"
clients = [{clients}]
rounds = 400
seed = 0
batch = "all"            # full batches: both runs converge to the same models
evaluate_every = 50
dtype = "float64"

[algorithm]
name = "dfedu"
lr = 0.1

[model]
name = "linear"

[graph]
path = "edges.csv"

[data]
label = "log_radon"
features = ["floor", "uranium"]
task = "regression"
scale = "pooled"
test_share = 0.25

[peers]
staleness = {staleness}
deadline = {deadline}

[peers.addresses]
{addresses}
"""


def write_plan(folder: Path, run: str, staleness: str, deadline: float) -> Path:
    """Write the plan of a run, and its graph: a ring, and chords between opposite points."""
    number, ports = len(POINTS), find_free_ports(len(POINTS))
    pairs = [(place, (place + 1) % number) for place in range(number)]
    pairs += [(place, place + number // 2) for place in range(number // 2)]
    edges = "\n".join(f"{POINTS[one]},{POINTS[other]}" for one, other in pairs)
    (folder / "edges.csv").write_text(edges + "\n", encoding="utf-8")
    addresses = "\n".join(f'{name} = "{HOST}:{port}"' for name, port in zip(POINTS, ports, strict=True))
    clients = ", ".join(f'"{name}"' for name in POINTS)
    text = PLAN.format(run=run, clients=clients, staleness=staleness, deadline=deadline, addresses=addresses)
    path = folder / f"{run}.toml"
    path.write_text(text, encoding="utf-8")
    return path


class PeerRuns:
    """The processes of one run: a peer per file."""

    def __init__(self, folder: Path, keys: Path, plan: Path, data: Mapping[str, Path]) -> None:
        """Start all peers at the same time; each waits for its neighbours."""
        self.folder, self.keys, self.path, self.data = folder, keys, plan, data
        self.plan = Plan.load(plan)
        self.end = time.monotonic() + MOST_SECONDS
        folder.mkdir(mode=0o700)
        self.processes: dict[str, Process] = {}
        for name in data:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a peer, or start it again with what is on its disk."""
        assert self.plan.peers is not None
        words = ["peer", self.path, "--name", name, "--data", self.data[name]]
        words += ["--listen", self.plan.peers.addresses[name], "--keys", self.keys / name]
        words += ["--folder", self.folder / name]
        self.processes[name] = start_command(words, self.folder / f"{name}.log")

    def find_round(self, name: str) -> int:
        """Return the last round that a peer has finished, from its log."""
        events = read_events(self.folder / name) if (self.folder / name).exists() else []
        return max((event.round or 0 for event in events if event.event == "round-finished"), default=0)

    def wait_for_round(self, name: str, round: int) -> None:
        """Wait until a peer has finished a round."""
        while self.find_round(name) < round and check_running(self.processes, self.folder, self.end):
            time.sleep(0.1)

    def kill(self, name: str) -> int:
        """Kill a peer; return its last round."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        return self.find_round(name)

    def finish(self) -> "PeerRuns":
        """Wait until all peers have ended by themselves."""
        try:
            while check_running(self.processes, self.folder, self.end):
                time.sleep(0.1)
        finally:
            end_all(self.processes)
        return self

    @property
    def record(self) -> PeersRecord:
        """The run, from the peers' folders."""
        return PeersRecord.read([self.folder / name for name in self.data])

    @property
    def models(self) -> torch.Tensor:
        """The models that the peers have stored, in the plan's order."""
        return torch.stack(
            [Personal.load(self.folder / name / "model.safetensors").parameters for name in self.data]
        )


def simulate(plan: Plan, data: Mapping[str, Path]) -> fl.Result:
    """Train the plan within this process, with the rows of all peers."""
    rows = pandas.concat([pandas.read_csv(path).assign(region=name) for name, path in data.items()])
    federation = fl.Federation.from_dataframe(
        rows, client="region", label=plan.data.label, features=list(plan.data.features),
        test_share=plan.data.test_share, seed=plan.seed, scale="none",
    )  # fmt: skip
    return fl.fit(
        plan.build_algorithm(plan.build_graph(plan.clients)),
        standardize_by_moments(federation, plan.data.scale),
        plan.build_architecture(),
        rounds=plan.rounds, seed=plan.seed, batch=plan.batch, dtype=plan.dtype, engine="one_by_one",
        evaluate_every=plan.evaluate_every, score_training="always",
    )  # fmt: skip


def run_undisturbed(folder: Path, keys: Path, data: Mapping[str, Path]) -> PeerRuns:
    """Run with staleness 0: every round waits for all models, as Algorithm 2 does."""
    plan = write_plan(folder, "undisturbed", "0", 30.0)
    return PeerRuns(folder / "undisturbed", keys, plan, data).finish()


def run_with_a_kill(folder: Path, keys: Path, data: Mapping[str, Path]) -> PeerRuns:
    """Kill a peer and start it again; meanwhile the others continue with its last model."""
    plan = write_plan(folder, "with-a-kill", '"any"', PATIENCE)
    run = PeerRuns(folder / "with-a-kill", keys, plan, data)
    run.wait_for_round(VICTIM, KILLED_IN_ROUND)
    last = run.kill(VICTIM)
    run.start(VICTIM)
    run.finish()
    events = read_events(run.folder / VICTIM)
    # On a busy machine the neighbours may be in the same round still.
    back = next((event.round for event in events if event.event == "rejoined"), last)
    print(f"{VICTIM} was killed after round {last}, and continued after round {back} of its neighbours")
    return run


def print_results(simulated: fl.Result, undisturbed: PeerRuns, killed: PeerRuns) -> bool:
    """Print what both runs ended with; return whether the undisturbed one repeats the simulation exactly."""
    is_same = torch.equal(undisturbed.models, order_models(simulated, undisturbed.plan.clients))
    objective = simulated.scores[-1].objective
    lines = [("simulation in one process", objective, objective, "", "")]
    for title, run in (("peers, staleness 0", undisturbed), (f"peers, {VICTIM} killed", killed)):
        record = run.record
        late = sum(record.count_late(edge.one, edge.other) + record.count_late(edge.other, edge.one)
                   for edge in record.edges)  # fmt: skip
        found = record.scores[-1].objective
        same = "bit-identical" if run is undisturbed and is_same else "differ" if run is undisturbed else ""
        lines.append((title, found, objective, same, f"{late:,}"))
    print(f"\n{'':28} {'J(W)':>18} {'minus simulation':>17}  {'models':14} {'late models':>11}")
    for title, found, reference, same, late in lines:
        assert found is not None
        assert reference is not None
        print(f"{title:28} {found:18.12f} {found - reference:17.1e}  {same:14} {late:>11}")
    print("\nJ(W): the objective at the last models. Models: compared bit for bit with the simulation's.")
    print("Late models: how often a neighbour's last model stood in for one that was late.")
    return is_same


def order_models(result: fl.Result, names: tuple[str, ...]) -> torch.Tensor:
    """Return the models of a simulation in the order of the plan."""
    clients = result.federation.clients
    return result.models[[clients.index(name) for name in names]]


def main() -> None:
    """Split the rows, make keys, run twice, and compare both runs with the simulation."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs") / time.strftime("peers-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, mode=0o700)
    start = time.monotonic()
    data, keys = split_compass(folder / "data"), folder / "keys"
    create_keys(keys, list(data), [HOST])
    print(f"{len(data)} peers on {HOST}, with certificates of {keys / 'authority'}")
    undisturbed = run_undisturbed(folder, keys, data)
    killed = run_with_a_kill(folder, keys, data)
    is_same = print_results(simulate(undisturbed.plan, data), undisturbed, killed)
    folders = [killed.folder / name for name in data]
    to = killed.folder / "report"
    command = shlex.join(["fedlap", "report", *map(str, folders), "--out", str(to)])
    print(f"\nReport: {write_page(read_peers_page(folders, command), to)}")
    print(f"Predict: fedlap predict {folders[0] / 'model.safetensors'} {data[POINTS[0]]}")
    print(f"{time.monotonic() - start:.0f} s")
    if not is_same:
        sys.exit("the undisturbed run does not have the models of the simulation")


if __name__ == "__main__":
    main()
