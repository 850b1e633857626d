"""The loop: rounds of sending, local work and mixing."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms import (
    Adapting,
    Algorithm,
    Certified,
    Coupled,
    Grouping,
    PeerAlgorithm,
    Penalised,
    Pooling,
    ServerAlgorithm,
    State,
    Suited,
)
from fedlap.engines import ENGINES, Clients, Engine
from fedlap.engines.state import nbytes, owned, put, rows, written
from fedlap.errors import DivergedError, InputError
from fedlap.federation import Federation
from fedlap.models import Architecture, Model
from fedlap.randomness import draws
from fedlap.result import Result
from fedlap.schedule import (
    DtypeName,
    EngineName,
    check_makers,
    check_schedule,
    known,
    sample_size,
    start_rows,
    usable,
)
from fedlap.scores import Score, Tally, score
from fedlap.work import BatchSize, Work

Kept = tuple[State, State]  # by the server, and by the clients


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
    start: Any = None,
    dtype: DtypeName = "float32",
    device: str = "cpu",
    engine: EngineName = "stacked",
    evaluate_every: int = 1,
    on_score: Callable[[Score], None] | None = None,
    on_round: Callable[[int], None] | None = None,
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
    on_score, on_round: called with each score as it is made, and with the number of each round done.
    """
    check_makers(algorithm, model)
    check_schedule(rounds, batch, sample, evaluate_every, seed)
    place, real = usable(device), getattr(torch, known("dtype", dtype, get_args(DtypeName)))
    make = ENGINES[known("engine", engine, ENGINES)]
    algorithm, sized = suited(algorithm, federation, model)
    everyone = len(federation.clients)
    chosen = sample_size(algorithm, sample, everyone)
    home = federation.resident(place, real)  # once, for those that train and those that are scored
    trainees = algorithm.view(home) if isinstance(algorithm, Pooling) else home
    working = chosen if trainees is home else len(trainees.clients)
    trainer = make(Clients(trainees, sized, seed, batch, place, real))
    scorer = trainer if trainees is home else make(Clients(home, sized, seed, batch, place, real))
    one_round = _one_round(algorithm, trainer)
    work = work_of(algorithm, chosen)
    kept = algorithm.begin(start_rows(start, sized, everyone, seed).to(place, real))
    scores: list[Score] = []
    sent, seconds = (0, 0), 0.0
    for done in range(1, rounds + 1):
        began = time.perf_counter()
        ids = trainer.clients.by_count(sampled(trainees, seed, done, working))
        kept, (up, down) = one_round(kept, ids, done, work)
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        seconds += time.perf_counter() - began
        sent = sent[0] + up, sent[1] + down
        if done == rounds or (evaluate_every and done % evaluate_every == 0):
            scores.append(_scored(algorithm, scorer, kept, done, sent, seconds))
            if on_score is not None:
                on_score(scores[-1])
        if on_round is not None:
            on_round(done)
    return Result(algorithm, federation, sized, _personal(algorithm, scorer, kept).clone(), *kept, scores)


def suited(algorithm: Algorithm, federation: Federation, model: Architecture) -> tuple[Algorithm, Model]:
    """The algorithm for these clients and the model of their size; what does not go together is refused."""
    sized = Model(model.build(federation.inputs, federation.outputs), federation.loss, model.l2)
    return algorithm.suited(federation, sized) if isinstance(algorithm, Suited) else algorithm, sized


def work_of(algorithm: Algorithm, sampled: int) -> Work:
    """What each client does in a round; one that owns all rows makes the steps of all sampled ones."""
    work = Work.of(algorithm.local_steps, algorithm.local_epochs)
    if isinstance(algorithm, Pooling):
        work = work.times(sampled)
    if isinstance(algorithm, Grouping):  # so that a pass, too, is as many steps as others make of it
        work = Work(work.repeats * algorithm.batches_per_step, work.epochs)
    return work


def _one_round(algorithm: Algorithm, engine: Engine) -> Callable[..., tuple[Kept, tuple[int, int]]]:
    """A round of this algorithm: with a server, or among peers."""
    if isinstance(algorithm, PeerAlgorithm):
        return partial(_peer_round, algorithm, engine)
    if isinstance(algorithm, ServerAlgorithm):
        return partial(_server_round, algorithm, engine)
    raise InputError(f"{type(algorithm).__name__} has neither `send` and `merge` nor `mix`; write either")


def _server_round(
    algorithm: ServerAlgorithm,
    engine: Engine,
    kept: Kept,
    ids: Int64[Tensor, "client"],
    number: int,
    work: Work,
) -> tuple[Kept, tuple[int, int]]:
    """What server and clients keep after a round, and the bytes sent by and to clients."""
    server, private = kept
    at = ids.to(engine.clients.device)
    told = algorithm.send(server, at)
    own, ups = engine.each(algorithm.local, (rows(private, at), owned(told)), ids, number, work)
    server = written(server, algorithm.merge(server, at, ups))
    return (server, put(private, at, own)), (nbytes(ups), nbytes(told))


def _peer_round(
    algorithm: PeerAlgorithm,
    engine: Engine,
    kept: Kept,
    ids: Int64[Tensor, "client"],
    number: int,
    work: Work,
) -> tuple[Kept, tuple[int, int]]:
    """The same without a server: every message is sent by a client and to a client."""
    server, private = kept
    at = ids.to(engine.clients.device)
    own, ups = engine.each(algorithm.local, (rows(private, at), None), ids, number, work)
    # Back in the order of the federation, which is the order of the graph.
    mixed = engine.mix(algorithm, put(private, at, own))
    sent = algorithm.messages() * nbytes(ups) // len(ids)
    return (server, mixed), (sent, sent)


def _scored(
    algorithm: Algorithm, scorer: Engine, kept: Kept, done: int, sent: tuple[int, int], seconds: float
) -> Score:
    """How every client's model does after a round; training that has left the finite numbers stops here."""
    federation = scorer.clients.given
    W = _personal(algorithm, scorer, kept)
    train, test = scorer.score(W)
    check_finite(train, federation, done, algorithm)
    ridge = scorer.clients.model.ridge(W.double()).cpu()
    penalty = float(algorithm.penalty(*kept)) if isinstance(algorithm, Penalised) else 0.0
    gap = None
    if isinstance(algorithm, Certified):
        gap = float(_everyone(algorithm.gap, (kept[1], W), scorer).double().sum())
    return score(done, train, test, ridge, penalty, gap, sent, seconds)


def _personal(algorithm: Algorithm, scorer: Engine, kept: Kept) -> Float[Tensor, "client param"]:
    """The model that each client is scored with."""
    W: Tensor = algorithm.personal(*kept, len(scorer.clients.given.clients))
    return _everyone(algorithm.adapt, (W,), scorer) if isinstance(algorithm, Adapting) else W


def _everyone(function: Callable[..., Tensor], states: tuple[State, ...], scorer: Engine) -> Tensor:
    """A function of all clients, in the order of the federation; it draws nothing."""
    ids = scorer.clients.by_count(torch.arange(len(scorer.clients.given.clients)))
    at = ids.to(scorer.clients.device)
    made: Tensor = scorer.each(function, tuple(rows(state, at) for state in states), ids, 0, Work(1, False))
    return torch.empty_like(made).index_copy_(0, at, made)


def sampled(federation: Federation, seed: int, round: int, number: int) -> Int64[Tensor, "client"]:
    """The clients of a round: those with the smallest draws, in their order in the federation."""
    if number == len(federation.clients):
        return torch.arange(number)
    keys = draws(seed, "sample", round).keys(federation.digests)
    return keys.argsort(stable=True)[:number].sort().values


def check_finite(train: Tally, federation: Federation, done: int, algorithm: Algorithm) -> None:
    """Stop where a client's training loss is no longer a number, and say what is likely to have done it."""
    bad = (~train.loss.isfinite()).nonzero().flatten().tolist()
    if not bad:
        return
    advice = f"lower lr (now {algorithm.lr:g}), or scale the features"
    if isinstance(algorithm, Coupled) and algorithm.coupling.product > 2:
        product = f"{algorithm.coupling.formula} = {algorithm.coupling.product:.4g}"
        advice = f"lower strength: {product}, and mixing is stable up to 2"
    raise DivergedError(
        f"training diverged: by round {done} the loss of client {federation.clients[bad[0]]!r} is not finite "
        f"({len(bad)} of {len(federation.clients)} clients); {advice}"
    )
