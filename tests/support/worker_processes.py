"""Workers in separate processes, which exchange bytes only, and the server's side of their rounds.

Run as a script, this file is such a process: it reads requests from standard input and writes replies to
standard output. A request or a reply is a line of JSON and a state as bytes, each after its length.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch

import fedlap as fl
from fedlap.algorithms import Binding, ClientTable, PeerAlgorithm, ServerAlgorithm
from fedlap.data.client_rows import ClientRows
from fedlap.data.roster import Roster
from fedlap.data.standardize import Standardizer
from fedlap.data.target_scale import TargetScale
from fedlap.models import Model
from fedlap.randomness import digest_names
from fedlap.training.client_sampling import ClientSampler, StackedRun
from fedlap.training.schedule import build_start, compute_sample_size
from fedlap.training.state import apply_updates, concatenate_states, gather_lazy_rows, split_state
from fedlap.training.state_bytes import decode_state, encode_state, list_state_types
from fedlap.training.worker import ClientTally, Worker, owns_models, select_client
from laws import METHODS

HOST = torch.device("cpu")


def write_frame(file, facts, content=b""):
    for part in (json.dumps(facts).encode(), content):
        file.write(len(part).to_bytes(8, "little") + part)
    file.flush()


def read_frame(file):
    """Return the facts and the content of a message, or None at the end of the file."""
    parts = []
    for _ in range(2):
        length = file.read(8)
        if len(length) < 8:
            return None
        parts.append(file.read(int.from_bytes(length, "little")))
    return json.loads(parts[0]), parts[1]


def cut_client(federation, k):
    """Return a federation of client k alone, with the standardisation of the run."""
    train, test = (
        ClientRows.of(*rows.client(k), rows.count[k : k + 1]) for rows in (federation.train, federation.test)
    )
    scale = federation.scale
    if scale.kind == "client":
        scale = Standardizer("client", scale.shift[k : k + 1], scale.factor[k : k + 1])
    return replace(federation, clients=federation.clients[k : k + 1], train=train, test=test, scale=scale)


# In the processes of the workers.


def build_worker(facts, content):
    """Build a worker from a plain description and from its rows as bytes."""
    x, y, x_test, y_test, shift, factor, targets, matrix, counts = decode_state(content)
    labels, clients = facts["labels"] and tuple(facts["labels"]), tuple(facts["clients"])
    train, test = (ClientRows.of(a, b, torch.tensor([len(a)])) for a, b in ((x, y), (x_test, y_test)))
    scale = Standardizer(facts["scale"], shift, factor)
    target_scale = targets if targets is None else TargetScale(*targets)
    rows = fl.Federation((facts["client"],), train, test, labels, scale, target_scale=target_scale)
    roster = Roster(clients, digest_names(clients), counts, labels)
    method = METHODS[facts["method"]]
    algorithm = method.make(fl.Graph.from_matrix(matrix.numpy(), clients), **facts["work"])
    return Worker(algorithm, rows, method.model, roster, **facts["settings"])


def answer(workers, facts, content):
    """Return the reply to a request, as a state."""
    name, verb = tuple(facts.pop("worker")), facts.pop("verb")
    if verb == "build":
        workers[name] = build_worker(facts, content)
        return None
    worker = workers[name]
    state = decode_state(content, [*list_state_types(worker.method), ClientTable])
    if verb in ("save", "load", "confirm"):
        return getattr(worker, verb)(**facts)
    if verb == "private":
        return worker.private
    arguments = state if verb == "mix" else (state,)
    order = [facts.pop(key) for key in ("round", "exchange") if key in facts]
    return getattr(worker, verb)(*order, *arguments, **facts)


def serve_workers():
    """Answer requests until standard input ends."""
    torch.set_num_threads(1)
    workers = {}
    while (request := read_frame(sys.stdin.buffer)) is not None:
        try:
            reply = {}, encode_state(answer(workers, *request))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}, b""
        write_frame(sys.stdout.buffer, *reply)


# In the process of the server.


class ProcessPool:
    """Processes that each host the workers of several clients."""

    def __init__(self, size):
        command = [sys.executable, str(Path(__file__))]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(size)
        ]

    def ask(self, requests):
        """Send requests (worker, facts, bytes), workers in parallel, and return the replies in order."""
        places = [worker % len(self.processes) for (_, worker), _, _ in requests]
        for place, (worker, facts, content) in zip(places, requests, strict=True):
            write_frame(self.processes[place].stdin, {"worker": worker, **facts}, content)
        replies = [read_frame(self.processes[place].stdout) for place in places]
        for reply in replies:
            if "error" in reply[0]:
                raise RuntimeError(reply[0]["error"])
        return [content for _, content in replies]

    def close(self):
        for process in self.processes:
            process.stdin.close()
            process.wait(timeout=30)
            process.stdout.close()


class Deployment:
    """The server's side of a run whose clients are workers in other processes."""

    def __init__(
        self, pool, name, work, federation, matrix, *, sample=1.0, seed=5, batch=4, run=0, **settings
    ):
        self.pool, self.run, self.federation, clients = pool, run, federation, federation.clients
        entry = METHODS[name]
        self.model = Model(
            entry.model.build(federation.inputs, federation.outputs), federation.loss, entry.model.l2
        )
        algorithm = entry.make(fl.Graph.from_matrix(matrix, clients), **work)
        self.method = (
            algorithm.bind(federation.roster, self.model) if isinstance(algorithm, Binding) else algorithm
        )
        dtype = getattr(torch, settings.get("dtype", "float32"))
        start = build_start(None, self.model, len(clients), seed, HOST, dtype)
        self.server, self.types = self.method.init_server(start), list_state_types(self.method)
        self.initial = self.method.init_clients(start, federation.train.count)
        is_peer = isinstance(self.method, PeerAlgorithm)
        self.known = self.method.public_models(self.initial).split(1) if is_peer else ()
        size = compute_sample_size(algorithm, sample, len(clients))
        self.sampler = ClientSampler.of([StackedRun(self.method, federation, seed, 0, size)])
        self.merged = dict.fromkeys(range(len(clients)), 0)  # the last merged round of each client
        self.round = 0
        facts = {
            "verb": "build", "method": name, "work": work, "clients": clients, "labels": federation.labels,
            "settings": {"seed": seed, "batch": batch, **settings}, "scale": federation.scale.kind,
        }  # fmt: skip
        self.builds = []
        for k, client in enumerate(clients):
            rows = cut_client(federation, k)
            arrays = (*rows.train.client(0), *rows.test.client(0), rows.scale.shift, rows.scale.factor)
            scale = federation.target_scale
            targets = None if scale is None else (scale.mean, scale.deviation)
            content = encode_state((*arrays, targets, torch.from_numpy(matrix), federation.train.count))
            self.builds.append(((run, k), {**facts, "client": client}, content))
        self.build_workers()

    def build_workers(self):
        self.pool.ask(self.builds)

    def ask(self, ids, facts, states):
        """Send a request with a state to some workers and return their replies as states."""
        named = facts["verb"] in ("local", "confirm")
        requests = [
            ((self.run, k), {**facts, **({"merged": self.merged[k]} if named else {})}, encode_state(state))
            for k, state in zip(ids, states, strict=True)
        ]
        return [decode_state(content, [*self.types, ClientTally]) for content in self.pool.ask(requests)]

    def play(self, lose=False, between=None, without=()):
        """Play a round; with `lose`, all replies are lost once and the round is repeated, after `between`.

        without: clients whose replies are lost for good; the server merges those of the others.
        """
        self.round += 1
        ids = self.sampler.draw(range(self.round, self.round + 1), HOST)[0]
        if lose:
            self.play_attempt(ids)
            if between is not None:
                between()
        self.merge_replies(ids, self.play_attempt(ids), without)

    def play_attempt(self, ids):
        """Return the replies of a cohort to the messages of a round."""
        clients, has_server = ids.tolist(), isinstance(self.method, ServerAlgorithm)
        down = [None] * len(ids)
        if has_server:
            down = split_state(gather_lazy_rows(self.method.send(self.server, ids)), [1] * len(ids))
        replies = self.ask(clients, {"verb": "local", "round": self.round}, down)
        if not has_server:
            self.exchange(replies)
        return replies

    def receive_messages(self, messages):
        """Return the public models of all peers after these messages, from those of the round before."""
        return [self.method.receive(*pair) for pair in zip(self.known, messages, strict=True)]

    def merge_replies(self, ids, replies, without):
        arrived = [place for place, k in enumerate(ids.tolist()) if k not in without]
        ids = ids[arrived]
        if isinstance(self.method, ServerAlgorithm):
            merged = self.method.merge(self.server, ids, concatenate_states([replies[p] for p in arrived]))
            (self.server,) = apply_updates([self.server], [merged])
        if self.known:
            self.known = self.receive_messages(replies)
        self.merged |= dict.fromkeys(ids.tolist(), self.round)

    def exchange(self, messages):
        """Run all exchanges of a round between peers, which begins with the messages of their local work."""
        neighbours = [self.method.in_neighbours(k) for k in range(len(messages))]
        for number in range(self.method.exchanges):
            known = torch.cat(self.receive_messages(messages))
            received = [(known[ids].unsqueeze(0), a.unsqueeze(0)) for ids, a in neighbours]
            facts = {"verb": "mix", "round": self.round, "exchange": number}
            messages = self.ask(range(len(messages)), facts, received)

    def collect_models(self):
        """Return the personal models: those of the server, or those that workers compute."""
        everyone = range(len(self.federation.clients))
        self.ask(everyone, {"verb": "confirm"}, [None] * len(everyone))
        if owns_models(self.method, self.server, self.initial):
            return self.method.personal_models(self.server, self.initial, len(everyone)).split(1)
        states = [select_client(self.server, k) for k in everyone]
        return self.ask(everyone, {"verb": "personal_model"}, states)

    def ask_everyone(self, verb, states=None, **facts):
        everyone = range(len(self.federation.clients))
        return self.ask(everyone, {"verb": verb, **facts}, states or [None] * len(everyone))

    def store(self, verb, folder):
        """Save the state of every worker to a separate file, or load it."""
        self.pool.ask(
            [
                ((self.run, k), {"verb": verb, "path": str(folder / f"{k}.worker")}, encode_state(None))
                for k in range(len(self.builds))
            ]
        )


if __name__ == "__main__":
    serve_workers()
