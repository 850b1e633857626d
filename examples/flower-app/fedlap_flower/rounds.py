"""The server's side of a run, without Flower: it asks clients through an `Exchange` and merges replies."""

import logging
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import platformdirs
import torch

import fedlap as fl
from fedlap.algorithms import Binding, ClientTable, Grouping, ServerAlgorithm, State
from fedlap.models import CrossEntropy, Model, SquaredError
from fedlap.training.client_sampling import SamplingGroup
from fedlap.training.plain_task import HOST, PlainTask
from fedlap.training.schedule import Schedule, build_start, compute_sample_size
from fedlap.training.scores import Score, Tally, compute_score
from fedlap.training.state import (
    apply_updates,
    concatenate_states,
    describe_shapes,
    gather_lazy_rows,
    list_tensors,
    split_state,
)
from fedlap.training.state_bytes import (
    decode_state,
    encode_state,
    list_state_types,
    read_state_file,
    write_state_file,
)
from fedlap.training.strength_choice import compute_default_strength, has_auto_strength, has_open_strength
from fedlap.training.worker import ClientTally
from fedlap_flower.client import Content, build_roster
from fedlap_flower.task import Plan, build_algorithm, build_model, list_clients

LOG = logging.getLogger("flwr")  # `flwr log` shows its lines
ATTEMPTS, PAUSE = 5, 3.0  # attempts to get enough replies, and seconds between them
MAY_CHANGE = {"rounds", "deadline", "least-replies", "folder", "names"}  # when a run resumes


class Exchange(Protocol):
    """Sends requests to clients by name, and vouches for the name of each reply."""

    def ask(self, verb: str, requests: Mapping[str, Content], seconds: float) -> dict[str, Content]:
        """Return the replies that arrive in time; clients that are offline or fail are missing."""
        ...


def train(config: Plan, exchange: Exchange) -> "Server":
    """Train until the last round; resume from the checkpoint if there is one."""
    folder = Path(config["folder"] or platformdirs.user_state_path("fedlap") / "flower")
    server = Server(config, folder / f"{config['run']}.checkpoint", exchange)
    while server.round < config["rounds"]:
        server.play()
    server.evaluate()
    return server


class Server:
    """The server: the plan, the state of the method, and the last merged round of each client."""

    def __init__(self, config: Plan, checkpoint: Path, exchange: Exchange) -> None:
        """Load the checkpoint, or ask every client for the number of its rows."""
        algorithm: Any = build_algorithm(config)
        _check_method(algorithm, config)
        self.config, self.checkpoint, self.exchange = config, checkpoint, exchange
        self.clients, self.types = (
            list_clients(config),
            [*list_state_types(algorithm), ClientTable, ClientTally],
        )
        self.round, self.merged, state = 0, dict[str, int](), None
        if checkpoint.exists():
            facts, state = read_state_file(checkpoint, self.types)
            self.plan, self.round, self.merged = facts["plan"], facts["round"], facts["merged"]
            changed = {key for key in config if self.plan.get(key) != config[key]} - MAY_CHANGE
            if changed:
                raise fl.InputError(f"{', '.join(sorted(changed))}: other than before; use another `run`")
            LOG.info("resuming after round %d from %s", self.round, checkpoint)
        else:
            self.plan = self._describe_clients()
        algorithm, architecture, roster = (
            build_algorithm(self.plan),
            build_model(config),
            build_roster(self.plan),
        )
        network = architecture.build(tuple(self.plan["inputs"]), self.plan["outputs"])
        loss = CrossEntropy() if config["labels"] else SquaredError()
        model = Model(network, loss, architecture.l2, architecture)
        self.method: Any = algorithm.bind(roster, model) if isinstance(algorithm, Binding) else algorithm
        dtype = Schedule(dtype=config["dtype"], batch=config["batch"]).torch_dtype
        start = build_start(None, model, len(self.clients), config["seed"], HOST, dtype)
        self.private = self.method.init_clients(start, roster.counts)  # before the first round
        self.state = state if self.round else self.method.init_server(start)
        size = compute_sample_size(algorithm, config["sample"], len(self.clients))
        self.sampler = SamplingGroup([config["seed"]], roster.digests.unsqueeze(0), size)
        self.shapes = self._find_shapes(model, start[:1].clone())

    def play(self) -> None:
        """Play a round and write a checkpoint; raise InputError if too few clients reply."""
        round = self.round + 1
        ids = self.sampler.draw(range(round, round + 1), HOST)[0, 0]
        names = [self.clients[k] for k in ids.tolist()]
        rows = split_state(gather_lazy_rows(self.method.send(self.state, ids)), [1] * len(names))
        down = dict(zip(names, rows, strict=True))
        least = min(self.config["least-replies"], len(names))
        up = self._ask("train", down, least, round=round)
        arrived = torch.tensor([k for k in ids.tolist() if self.clients[k] in up])
        merged = self.method.merge(self.state, arrived, concatenate_states(list(up.values())))
        (self.state,) = apply_updates([self.state], [merged])
        self.round, self.merged = round, self.merged | dict.fromkeys(up, round)
        self.checkpoint.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = {"plan": self.plan, "round": self.round, "merged": self.merged}
        write_state_file(self.checkpoint, facts, self.state)
        LOG.info("round %d: merged %d of %d replies", round, len(up), len(names))

    def evaluate(self) -> Score:
        """Ask every client to write its personal model; return the score over all clients that reply."""
        tables = isinstance(self.state, tuple) and any(isinstance(part, ClientTable) for part in self.state)
        is_model, count = tables or self.private is None, len(self.clients)
        if is_model:
            states = self.method.personal_models(self.state, self.private, count).split(1)
        else:
            states = (self.state,) * count
        down = dict(zip(self.clients, states, strict=True))
        tallies = self._ask("evaluate", down, 1, is_model=is_model)
        sums: ClientTally = concatenate_states(list(tallies.values()))
        gap = None if sums.gap is None else float(sums.gap.sum())
        both = Tally(*sums.train), Tally(*sums.test)
        score = compute_score(self.round, *both, sums.ridge, 0.0, gap, (0, 0), 0.0)
        LOG.info("models written by %s; %s", ", ".join(tallies), ", ".join(score.list_values()))
        return score

    def _ask(self, verb: str, down: Mapping[str, State], least: int, **facts: Any) -> dict[str, State]:
        """Return the valid replies in the order of `down`; repeat the request until there are enough."""
        requests = {
            name: (
                facts | {"plan": self.plan, "client": name, "merged": self.merged.get(name, 0)},
                encode_state(state),
            )
            for name, state in down.items()
        }
        for attempt in range(ATTEMPTS):
            time.sleep(PAUSE if attempt else 0.0)
            replies = self.exchange.ask(verb, requests, self.config["deadline"])
            states = {name: self._decode(verb, name, replies[name][1]) for name in down if name in replies}
            valid = {name: state[0] for name, state in states.items() if state}
            if len(valid) >= least:
                return valid
        raise fl.InputError(
            f"{verb} has {len(valid)} replies; expected at least {least}; repair the clients that the log "
            "names, and start a run again to resume"
        )

    def _decode(self, verb: str, name: str, content: bytes) -> tuple[State, ...]:
        """Return a state in a tuple; an empty one if the reply of a client is refused."""
        try:
            state = decode_state(content, self.types)
            if verb == "train" and describe_shapes(state) != self.shapes:
                raise fl.InputError(f"it has shapes {describe_shapes(state)}; expected {self.shapes}")
            if verb == "train" and not all(bool(tensor.isfinite().all()) for tensor in list_tensors(state)):
                raise fl.InputError("it contains NaN or infinity")
        except fl.InputError as error:
            LOG.warning("the reply of client %s is refused: %s", name, error)
            return ()
        return (state,)

    def _describe_clients(self) -> dict[str, Any]:
        """Return the plan with the number of rows of each client, which all clients must report."""
        plan = {**self.config, "fedlap": fl.__version__, "id": f"{self.config['run']}-{secrets.token_hex(8)}"}
        known: dict[str, Content] = {}
        for attempt in range(ATTEMPTS):
            time.sleep(PAUSE if attempt else 0.0)
            missing = {
                name: ({"plan": plan, "client": name}, b"") for name in self.clients if name not in known
            }
            replies = self.exchange.ask("describe", missing, self.config["deadline"])
            known |= {name: reply for name, reply in replies.items() if _is_description(reply[0])}
            if len(known) == len(self.clients):
                break
        else:
            raise fl.InputError(f"{len(known)} of {len(self.clients)} clients reply; start the others")
        described = [known[name][0] for name in self.clients]
        for key in ("inputs", "outputs"):
            if len({repr(facts[key]) for facts in described}) > 1:
                raise fl.InputError(f"clients differ in {key}; use the same columns everywhere")
        plan |= described[0] | {"rows": [facts["rows"] for facts in described]}
        algorithm: Any = build_algorithm(plan)
        if has_open_strength(algorithm):
            mean = sum(plan["rows"]) / len(self.clients)
            plan["algorithm.strength"] = compute_default_strength(algorithm.coupling, mean)
        return plan

    def _find_shapes(self, model: Model, start: Any) -> Any:
        """Return the shapes of a valid upload, from local work on a row of zeros."""
        one = torch.zeros(1, dtype=torch.int64)
        x = start.new_zeros(1, 1, *self.plan["inputs"])
        y = one.view(1, 1) if self.config["labels"] else start.new_zeros(1, 1, self.plan["outputs"])
        down = gather_lazy_rows(self.method.send(self.state, one))
        private = self.method.init_clients(start, one + 1)
        batches = [one] * (self.method.batches_per_step if isinstance(self.method, Grouping) else 1)
        with torch.no_grad():
            return describe_shapes(self.method.local(private, down, PlainTask(model, x, y, batches))[1])


def _is_description(facts: Any) -> bool:
    """Return whether a client has described its rows: their number, inputs and outputs."""
    if not isinstance(facts, dict) or set(facts) != {"rows", "inputs", "outputs"}:
        return False
    inputs = facts["inputs"] if isinstance(facts["inputs"], list) else [None]
    return all(
        type(number) is int and 0 < number < 2**31 for number in (facts["rows"], facts["outputs"], *inputs)
    )


def _check_method(algorithm: Any, config: Plan) -> None:
    """Raise InputError for settings that need all rows in one place."""
    if not isinstance(algorithm, ServerAlgorithm):
        raise fl.InputError(f"{type(algorithm).__name__} has no server; use another method, such as fedu")
    if has_auto_strength(algorithm):
        raise fl.InputError("strength = 'auto' needs the rows of all clients; set a number or leave it out")
    if config["scale"] == "pooled" or (not config["labels"] and config["scale"] != "none"):
        raise fl.InputError(
            "constants of all rows are not known; use scale = 'none', or 'client' for classes"
        )
