"""A deployment within one process: clients ask the coordinator directly, and messages can be disturbed."""

import itertools
from dataclasses import dataclass, field, replace

import torch

import fedlap as fl
from fedlap.data.standardize import UNSCALED
from fedlap.deploy.client import SiteClient
from fedlap.deploy.client_storage import MODEL_FILE, ClientStorage
from fedlap.deploy.coordinator import Coordinator
from fedlap.deploy.moments import standardize_by_moments
from fedlap.deploy.run_state import Phase
from fedlap.deploy.run_storage import RunStorage
from fedlap.deploy.setup import Setup
from fedlap.deploy.tasks import choose_task
from fedlap.deploy.transport import UnreachableError
from fedlap.deploy.wire import encode_message
from fedlap.personal import Personal
from fedlap.training.state import (
    apply_updates,
    concatenate_states,
    gather_lazy_rows,
    map_state,
    split_state,
)
from fedlap.training.worker import Worker
from worker_processes import cut_client

MOST_STEPS = 5_000  # of all clients together; a run that needs more is stuck


class CrashError(Exception):
    """The process ends here."""


@dataclass
class Faults:
    """Disturbances of messages, one for each request; nothing happens after the last one.

    drop: the request is lost. forget: the answer is lost. twice: the request arrives twice. corrupt: a byte
    of the request is changed. truncate: its end is cut off. replay: an earlier request arrives first.
    """

    script: list = field(default_factory=list)
    sent: dict = field(default_factory=dict)

    def deliver(self, name, content, handle):
        kind, number = self.script.pop(0) if self.script else ("none", 0)
        earlier = self.sent.setdefault(name, [])
        if kind == "replay" and earlier:
            handle(name, earlier[number % len(earlier)])
        earlier.append(content)
        if kind == "drop":
            raise UnreachableError("the request was lost")
        if kind == "corrupt":
            place = number % len(content)
            handle(name, content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
            raise UnreachableError("the answer to a damaged request was lost")
        if kind == "truncate":
            handle(name, content[: number % len(content)])
            raise UnreachableError("the answer to a truncated request was lost")
        if kind == "twice":
            handle(name, content)
        answer = handle(name, content)
        if kind == "forget":
            raise UnreachableError("the answer was lost")
        return answer


class LocalTransport:
    """The end of one client, which calls the coordinator of a deployment."""

    def __init__(self, deployment, name):
        self.deployment, self.name = deployment, name

    def ask(self, content, timeout):
        return self.deployment.faults.deliver(self.name, content, self.deployment.handle)

    def close(self):
        pass


class LocalDeployment:
    """A server and clients in one thread; each client takes one step at a time, in any order."""

    def __init__(self, folder, plan, federation, faults=()):
        self.folder, self.plan, self.federation = folder, plan, federation
        self.faults, self.events, self.now = Faults(list(faults)), [], 0.0
        self.start_server()
        self.clients = {}
        for name in plan.clients:
            self.start_client(name)

    def log(self, event, **facts):
        self.events.append((event, facts))

    def start_server(self):
        self.coordinator = Coordinator(self.plan, RunStorage(self.folder / "server"), self.log, self.now)

    def start_client(self, name):
        k = self.federation.clients.index(name)

        def load_site(data, seed):
            return cut_client(unscale(self.federation), k)

        storage = ClientStorage(self.folder / name)
        self.clients[name] = SiteClient(name, load_site, LocalTransport(self, name), storage, self.log)
        self.clients[name].greeted = False

    def handle(self, name, content):
        try:
            message = self.coordinator.handle(name, content, self.now)
            self.coordinator.advance(self.now)
        except CrashError:
            self.start_server()
            raise UnreachableError("the server has ended") from None
        if message.kind == "wait":  # as the server does, which holds polls
            site = self.coordinator.sites[name]
            message = choose_task(self.coordinator, site)
        return encode_message(message)

    def step(self, name):
        """Take a step of a client; return False at its end."""
        client = self.clients[name]
        try:
            if not client.greeted:
                client._greet()
                client.greeted = True
                return True
            return client._work()
        except CrashError:
            self.start_client(name)
            return True

    def advance(self, seconds=0.0):
        """Move the server's clock."""
        self.now += seconds
        try:
            self.coordinator.advance(self.now)
        except CrashError:
            self.start_server()

    def run(self, order=None, without=()):
        """Take steps of all clients in turn until the run has ended."""
        names = itertools.cycle(order or self.plan.clients)
        for _ in range(MOST_STEPS):
            name = next(names)
            if name not in without:
                self.step(name)
            self.advance()
            if self.coordinator.phase is Phase.DONE:
                return self
        raise AssertionError(f"the run is stuck in {self.coordinator.phase}, round {self.coordinator.round}")

    @property
    def models(self):
        """The personal models that the clients have stored."""
        return torch.cat([read_model(self.folder / name) for name in self.coordinator.setup.clients])

    def list_events(self, event):
        return [facts for found, facts in self.events if found == event]


def read_model(folder):
    """Return the flat parameters of the model file that a client has written."""
    return Personal.load(folder / MODEL_FILE).parameters.unsqueeze(0)


def simulate(plan, federation):
    """Train the plan in one process with the plain engine, with the constants of its deployment."""
    federation = standardize_by_moments(unscale(federation), plan.data.scale)
    schedule = plan.schedule
    return fl.fit(
        plan.build_algorithm(plan.build_graph(federation.clients)), federation, plan.build_architecture(),
        rounds=plan.rounds, seed=plan.seed, batch=schedule.batch, sample=schedule.sample,
        dtype=schedule.dtype, engine="one_by_one", evaluate_every=schedule.evaluate_every,
        score_training="always",
    )  # fmt: skip


def train_cohorts(plan, federation, cohorts):
    """Return the personal models after rounds in which these clients counted, by a loop over workers."""
    federation = standardize_by_moments(unscale(federation), plan.data.scale)
    counts = federation.train.count.tolist()
    setup = Setup.of(plan, plan.clients, counts, plan.build_graph(plan.clients), 1, 1)
    workers = [
        Worker(
            setup.algorithm, cut_client(federation, k), plan.build_architecture(), setup.roster,
            seed=plan.seed, batch=plan.batch, dtype=plan.dtype,
        )
        for k in range(len(counts))
    ]  # fmt: skip
    method, last = setup.method, [0] * len(workers)
    server = method.init_server(setup.build_start())
    for round, names in enumerate(cohorts, 1):
        places = [plan.clients.index(name) for name in names]
        down = split_state(gather_lazy_rows(method.send(server, torch.tensor(places))), [1] * len(places))
        up = [
            workers[k].local(round, map_state(torch.Tensor.clone, row), merged=last[k])
            for k, row in zip(places, down, strict=True)
        ]
        merged = method.merge(server, torch.tensor(places), concatenate_states(up))
        (server,) = apply_updates([server], [merged])
        for k in places:
            last[k] = round
    return method.personal_models(server, setup.initial_private, len(workers))


def unscale(federation):
    return replace(federation, scale=UNSCALED, target_scale=None)
