"""The loop: rounds of sending, local work and mixing."""

import math
import time
from collections.abc import Callable, Iterable
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms import Algorithm, PeerAlgorithm, ServerAlgorithm, State
from fedlap.engines import ENGINES, Clients, Engine
from fedlap.engines.state import nbytes, put, rows, written
from fedlap.errors import DivergedError, InputError, unknown
from fedlap.federation import Federation
from fedlap.models import Architecture, Model
from fedlap.randomness import draws
from fedlap.result import Result
from fedlap.scores import Score, Tally, score
from fedlap.work import BatchSize, Work

EngineName = Literal["stacked", "one_by_one"]
DtypeName = Literal["float32", "float64"]


@torch.no_grad()
def fit(
    algorithm: Algorithm,
    federation: Federation,
    model: Architecture,
    *,
    rounds: int = 100,
    batch: BatchSize = 20,
    sample: float = 1.0,
    seed: int = 0,
    start: Tensor | None = None,
    dtype: DtypeName = "float32",
    device: str = "cpu",
    engine: EngineName = "stacked",
    evaluate_every: int = 1,
    on_score: Callable[[Score], None] | None = None,
) -> Result:
    """Train every client's model.

    rounds: how many.
    batch: rows of a mini-batch, or "all" for full gradients.
    sample: share of clients that work in a round; S = max(1, ⌊sample·N + ½⌋), without replacement.
    seed: of starts, sampling and batches; the same seed gives the same numbers.
    start: a vector for all clients or a stack with one row each, instead of the model's own start.
    dtype, device: how precisely and where to compute.
    engine: "stacked", all clients at once, or "one_by_one", the plain reference.
    evaluate_every: rounds between scores; the last round is always scored, and 0 scores no other.
    on_score: called with each score as it is made.
    """
    check_schedule(rounds, batch, sample, evaluate_every)
    place, real = _device(device), _known("dtype", dtype, get_args(DtypeName))
    algorithm = algorithm.aligned(federation.clients)
    sized = Model(model.build(federation.inputs, federation.outputs), federation.loss, model.l2)

    def engine_for(some: Federation) -> tuple[Clients, Engine]:
        clients = Clients(some, sized, seed, batch, place, getattr(torch, real))
        return clients, ENGINES[_known("engine", engine, ENGINES)](clients)

    trainees = algorithm.view(federation)
    clients, trainer = engine_for(trainees)
    scorer = trainer if trainees is federation else engine_for(federation)[1]
    chosen = _sample_size(algorithm, sample, len(federation.clients))
    working = chosen if trainees is federation else len(trainees.clients)
    work = algorithm.work(chosen)
    W = _start(start, sized, len(federation.clients), seed).to(place, clients.dtype)
    server, private = algorithm.begin(W)
    scores: list[Score] = []
    sent, seconds = (0, 0), 0.0
    for done in range(1, rounds + 1):
        began = time.perf_counter()
        ids = clients.by_count(sampled(trainees, seed, done, working))
        server, private, (up, down) = _round(algorithm, trainer, server, private, ids, done, work)
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        seconds += time.perf_counter() - began
        sent = sent[0] + up, sent[1] + down
        if done == rounds or (evaluate_every and done % evaluate_every == 0):
            W = algorithm.personal(server, private, len(federation.clients))
            train, test = scorer.score(W)
            check_finite(train, federation, done, algorithm.lr)
            penalty = float(algorithm.penalty(server, private))
            scores.append(score(done, train, test, sized.ridge(W).double().cpu(), penalty, sent, seconds))
            if on_score is not None:
                on_score(scores[-1])
    return Result(algorithm, federation, sized, W.clone(), server, private, scores)


def _round(
    algorithm: Algorithm,
    engine: Engine,
    server: State,
    private: State,
    ids: Int64[Tensor, "client"],
    number: int,
    work: Work,
) -> tuple[State, State, tuple[int, int]]:
    """One round: what the server and the clients keep next, and the bytes sent by and to clients."""
    at = ids.to(engine.clients.device)
    if isinstance(algorithm, PeerAlgorithm):
        kept, ups = engine.train(algorithm, rows(private, at), None, ids, number, work)
        # Back in the order of the federation, which is the order of the graph.
        private = engine.mix(algorithm, put(private, at, kept))
        bytes_sent = algorithm.messages() * nbytes(ups) // len(ids)
        return None, private, (bytes_sent, bytes_sent)
    assert isinstance(algorithm, ServerAlgorithm)
    told = algorithm.send(server, at)
    kept, ups = engine.train(algorithm, rows(private, at), told, ids, number, work)
    server = written(server, algorithm.merge(server, at, ups))
    return server, put(private, at, kept), (nbytes(ups), nbytes(told))


def sampled(federation: Federation, seed: int, round: int, number: int) -> Int64[Tensor, "client"]:
    """The clients of a round: those with the smallest draws, in their order in the federation."""
    if number == len(federation.clients):
        return torch.arange(number)
    keys = draws(seed, "sample", round).keys(federation.digests)
    return keys.argsort(stable=True)[:number].sort().values


def check_schedule(rounds: int, batch: BatchSize, sample: float, evaluate_every: int) -> None:
    """Refuse what cannot be run."""
    if rounds < 1:
        raise InputError(f"rounds = {rounds}; it must be at least 1")
    if batch != "all" and (isinstance(batch, str) or batch < 1):
        raise InputError(f"batch = {batch}; it must be at least 1, or 'all' for full gradients")
    if not 0 < sample <= 1:
        raise InputError(f"sample = {sample}; it must be a share above 0 and at most 1")
    if evaluate_every < 0:
        raise InputError(f"evaluate_every = {evaluate_every}; it must be 0 (the last round alone) or more")


def check_finite(train: Tally, federation: Federation, done: int, lr: float) -> None:
    """Stop where a client's training loss is no longer a number."""
    bad = (~train.loss.isfinite()).nonzero().flatten().tolist()
    if bad:
        raise DivergedError(
            f"training diverged: by round {done} the loss of client {federation.clients[bad[0]]!r} and "
            f"{len(bad) - 1} others is not finite; lower lr (now {lr:g}), or scale the features"
        )


def _sample_size(algorithm: Algorithm, sample: float, clients: int) -> int:
    size = max(1, math.floor(sample * clients + 0.5))
    if isinstance(algorithm, PeerAlgorithm) and size < clients:
        name = type(algorithm).__name__
        raise InputError(f"{name}: peers are not sampled, yet sample = {sample:g}; leave it at 1")
    return size


def _start(start: Tensor | None, model: Model, clients: int, seed: int) -> Float[Tensor, "client param"]:
    """One row a client."""
    given = model.start(seed) if start is None else torch.as_tensor(start)
    if given.shape not in ((model.size,), (clients, model.size)):
        raise InputError(
            f"start has shape {tuple(given.shape)}; it must be ({model.size},) for one common start "
            f"or ({clients}, {model.size}) for a row a client"
        )
    if not bool(given.isfinite().all()):
        raise InputError("start holds NaN or infinity; give finite numbers")
    return given.expand(clients, model.size)


def _known(what: str, name: str, known: Iterable[str]) -> str:
    if name not in set(known):
        raise unknown(what, name, known)
    return name


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device {name!r} cannot be used ({reason}); use cpu") from error
    return device
