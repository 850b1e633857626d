"""Invalid input through every public door: `python invalid_fits.py 3` prints what every third raises.

A test runs it in a process of its own, without the type checker of the other tests, as users run fedlap.
"""

import json
import sys
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

import fedlap as fl
from fedlap.algorithms import Traits
from fedlap.algorithms.conjugates import DualProblem, Squared
from fedlap.algorithms.local_updates import (
    dual_coordinate_ascent,
    first_order_maml,
    interpolated_sgd,
    moreau,
    sgd,
)
from fedlap.data.client_rows import ClientRows
from fedlap.data.partition import OwnerPartition
from fedlap.data.standardize import Standardizer

HUGE = 2**40
SIZES = (9, 2, 13, 5, 21)
CASES = {}


def case(name, **values):
    """Register a function as one case, or as one for each of the values of its argument."""

    def register(function):
        for label, value in (values or {"": None}).items():
            CASES[f"{name} {label}".strip()] = (lambda v=value: function(v)) if values else function
        return function

    return register


@cache
def make_federation(kind="real", number=0):
    """A federation; one that a case changes has a number of its own."""
    draw = np.random.default_rng(7)
    arrays = {}
    for place, rows in enumerate(SIZES):
        x = (
            draw.integers(0, 256, (rows, 2, 3)).astype(np.uint8)
            if kind == "bytes"
            else draw.normal(size=(rows, 6))
        )
        arrays[str(place)] = (x, draw.normal(size=rows) if kind == "targets" else draw.integers(0, 3, rows))
    labels = None if kind == "targets" else 3
    federation = fl.Federation.from_arrays(arrays, labels=labels)
    return federation.standardize("client") if kind == "bytes" else federation


def fit(federation=None, method=None, model=None, **schedule):
    federation = make_federation() if federation is None else federation
    schedule = {"rounds": 2, "batch": 4, "dtype": "float64", **schedule}
    return fl.fit(method or fl.FedAvg(lr=0.05), federation, model or fl.models.linear(0.01), **schedule)


# Rows of a federation: places, labels, counts and features that are wrong from the beginning.


def set_middle(tensor, value):
    tensor = tensor.clone()
    tensor[len(tensor) // 2] = value
    return tensor


PARTS = {
    "row too large": lambda p: replace(p, row=set_middle(p.row, len(p.store))),
    "row huge": lambda p: replace(p, row=set_middle(p.row, HUGE)),
    "row negative": lambda p: replace(p, row=set_middle(p.row, -1)),
    "rows real": lambda p: replace(p, row=p.row.double()),
    "rows short": lambda p: replace(p, row=p.row.int()),
    "rows a matrix": lambda p: replace(p, row=p.row.unsqueeze(1)),
    "rows too few": lambda p: replace(p, row=p.row[:-1]),
    "rows too many": lambda p: replace(p, row=torch.cat([p.row, p.row])),
    "label too large": lambda p: replace(p, y=set_middle(p.y, 3)),
    "label huge": lambda p: replace(p, y=set_middle(p.y, HUGE)),
    "label negative": lambda p: replace(p, y=set_middle(p.y, -1)),
    "labels real": lambda p: replace(p, y=p.y.double()),
    "labels short": lambda p: replace(p, y=p.y.int()),
    "labels a matrix": lambda p: replace(p, y=p.y.unsqueeze(1)),
    "labels too few": lambda p: replace(p, y=p.y[:-1]),
    "count too large": lambda p: replace(p, count=set_middle(p.count, 99)),
    "count huge": lambda p: replace(p, count=set_middle(p.count, HUGE)),
    "count negative": lambda p: replace(p, count=set_middle(p.count, -1)),
    "counts short": lambda p: replace(p, count=p.count.int()),
    "counts real": lambda p: replace(p, count=p.count.double()),
    "counts too few": lambda p: replace(p, count=torch.cat([p.count[:3], p.count[3:].sum(0, keepdim=True)])),
    "counts too many": lambda p: replace(p, count=torch.cat([p.count, torch.zeros(1).long()])),
    "store too short": lambda p: replace(p, store=p.store[: len(p.store) // 2]),
    "store empty": lambda p: replace(p, store=p.store[:0]),
    "store a vector": lambda p: replace(p, store=p.store[:, 0]),
    "store of whole numbers": lambda p: replace(p, store=p.store.long()),
    "store complex": lambda p: replace(p, store=p.store.to(torch.complex128)),
}


@case("replaced training:", **PARTS)
def _(change):
    federation = make_federation()
    fit(replace(federation, train=change(federation.train)))


@case("replaced test:", **PARTS)
def _(change):
    federation = make_federation()
    fit(replace(federation, test=change(federation.test)))


@case("new federation:", **PARTS)
def _(change):
    old = make_federation()
    fit(fl.Federation(old.clients, change(old.train), old.test, old.labels))


@case("replaced", narrow=4, wide=9)
def _(features):
    """Test rows of another length than training rows."""
    federation = make_federation()
    x = torch.randn(len(federation.test.row), features, dtype=torch.float64)
    fit(replace(federation, test=ClientRows.of(x, federation.test.y, federation.test.count)))


@case("replaced labels", fewer=("a", "b"), none=None)
def _(labels):
    fit(replace(make_federation(), labels=labels))


@case("replaced clients", fewer=("a", "b"), more=tuple("abcdefg"), twice=tuple("aabcd"))
def _(clients):
    fit(replace(make_federation(), clients=clients))


@case("replaced targets")
def _():
    federation = make_federation("targets")
    fit(replace(federation, train=replace(federation.train, y=federation.train.y[:-2])))


@case(
    "replaced scale",
    fewer=Standardizer("client", torch.zeros(2, 1, 1), torch.ones(2, 1, 1)),
    wide=Standardizer("pooled", torch.zeros(1, 2, 9), torch.ones(1, 2, 9)),
    apart=Standardizer("client", torch.zeros(5, 1, 1), torch.ones(4, 1, 1)),
    flat=Standardizer("client", torch.zeros(5), torch.ones(5)),
)
def _(scale):
    fit(replace(make_federation("bytes"), scale=scale))


# The same tensors changed in place, before training and while it runs.


@case("changed before:", **{"a place": "row", "a label": "y", "a count": "count"})
def _(name):
    federation = make_federation("real", number=name)
    getattr(federation.train, name)[1] = HUGE
    fit(federation)


@case(
    "changed meanwhile:",
    **{
        f"{part}, {name}, {value}": (part, name, value)
        for part in ("train", "test")
        for name in ("row", "y")
        for value in (HUGE, -5)
    },
)
def _(change):
    part, name, value = change
    federation = make_federation("bytes", number=change)
    tensor = getattr(getattr(federation, part), name)
    fit(federation, on_round=lambda _: tensor.fill_(value))


# Algorithms that a user writes.


@dataclass(frozen=True)
class PatchedFedAvg:
    """FedAvg, but for the functions that a case replaces."""

    work: object = None
    sent: object = None
    scored: object = None
    lr: float = 0.05
    local_steps: int | None = None
    local_epochs: int | None = None

    traits = Traits("one model")
    citation = ""

    def init_server(self, start):
        return start.mean(0, keepdim=True)

    def init_clients(self, start, counts):
        return None

    def send(self, w, ids):
        return w.expand(len(ids), -1) if self.sent is None else self.sent(w, ids)

    def local(self, private, w, task):
        if self.work is None:
            return private, task.run(sgd, w, lr=self.lr)
        self.work(w, task)
        return private, w

    def merge(self, w, ids, ups):
        return ups.mean(0, keepdim=True)

    def personal_models(self, w, private, clients):
        return w.expand(clients, -1) if self.scored is None else self.scored(w, clients)


MODELS = {
    "too few": lambda w: w[:-1],
    "one": lambda w: w[:1],
    "too many": lambda w: torch.cat([w, w]),
    "none at all": lambda w: w[:0],
    "narrow": lambda w: w[:, :-3].clone(),
    "one column": lambda w: w[:, :1].clone(),
    "wide": lambda w: torch.cat([w, w], 1),
    "a vector": lambda w: w[0].clone(),
    "a cube": lambda w: w.unsqueeze(0),
    "turned": lambda w: w.mT,
    "of float32": lambda w: w.float(),
    "of float16": lambda w: w.half(),
    "of whole numbers": lambda w: w.long(),
    "complex": lambda w: w.to(torch.complex128),
    "on no device": lambda w: w.to("meta"),
    "an array": lambda w: w.numpy(),
    "nothing": lambda w: None,
}
MOREAU = {"lr": 0.1, "inner_lr": 0.1, "inner_steps": 2, "regularisation": 1.0}


@case("sgd:", **MODELS)
def _(change):
    fit(method=PatchedFedAvg(lambda w, task: task.run(sgd, change(w), lr=0.1)))


@case("sgd anchor:", **{name: MODELS[name] for name in MODELS if name != "nothing"})
def _(change):
    fit(method=PatchedFedAvg(lambda w, task: task.run(sgd, w, lr=0.1, anchor=change(w), pull=0.1)))


# One number per client is a valid shift. Neither None nor an array is a tensor: neither is a shift.
@case("sgd shift:", **{n: MODELS[n] for n in MODELS if n not in ("nothing", "an array", "one column")})
def _(change):
    fit(method=PatchedFedAvg(lambda w, task: task.run(sgd, w, lr=0.1, shift=change(w))))


@case("moreau:", **MODELS)
def _(change):
    fit(method=PatchedFedAvg(lambda w, task: task.run(moreau, change(w), **MOREAU)))


@case("first_order_maml:", **MODELS)
def _(change):
    def work(w, task):
        task.run(first_order_maml, change(w), adapt_lr=0.1, lr=0.1)

    fit(method=PatchedFedAvg(work, local_steps=4))


@case("interpolated_sgd:", **MODELS)
def _(change):
    def work(w, task):
        half = w.new_full((len(w), 1), 0.5)
        task.run(interpolated_sgd, w, v=change(w), mixture=half, lr=0.1, adaptive=True)

    fit(method=PatchedFedAvg(work))


def ascend(task, w, alpha, scale, share):
    problem = DualProblem(task.clients.model.network, Squared(), True)
    return task.run(dual_coordinate_ascent, w, alpha=alpha, scale=scale, share=share, problem=problem)


@case("dual_coordinate_ascent:", **MODELS)
def _(change):
    def work(w, task):
        one = w.new_ones(len(w), 1)
        ascend(task, change(w), w.new_zeros(len(w), 40, 3), one, one)

    fit(method=PatchedFedAvg(work))


@case("sent:", **{name: MODELS[name] for name in ("too few", "too many", "narrow", "wide", "of float32")})
def _(change):
    fit(method=PatchedFedAvg(sent=lambda w, ids: change(w.expand(len(ids), -1))))


@case("scored:", **MODELS)
def _(change):
    fit(method=PatchedFedAvg(scored=lambda w, clients: change(w.expand(clients, -1))))


DUALS = {
    "few rows": ((5, 2, 3), (5, 1), (5, 1)),
    "no rows": ((5, 0, 3), (5, 1), (5, 1)),
    "few clients": ((4, 40, 3), (5, 1), (5, 1)),
    "few outputs": ((5, 40, 2), (5, 1), (5, 1)),
    "a scale": ((5, 40, 3), (4, 1), (5, 1)),
    "a share": ((5, 40, 3), (5, 1), (2, 1)),
}


@case("dual variables:", **DUALS)
def _(shapes):
    def work(w, task):
        ascend(task, w, *(w.new_ones(*shape) for shape in shapes))

    fit(method=PatchedFedAvg(work))


@case("dual variables: of float32")
def _():
    def work(w, task):
        one = w.new_ones(len(w), 1)
        ascend(task, w, torch.zeros(len(w), 40, 3), one, one)

    fit(method=PatchedFedAvg(work))


@case("dual variables: of layers")
def _():
    def work(w, task):
        one = w.new_ones(len(w), 1)
        ascend(task, w, w.new_zeros(len(w), 40, 3), one, one)

    fit(method=PatchedFedAvg(work), model=fl.models.mlp(4))


@case("times", none=0, negative=-1, huge=2**70, real=1.5, word="two")
def _(times):
    fit(method=PatchedFedAvg(lambda w, task: task.run(moreau, w, **{**MOREAU, "inner_steps": times})))


@case("rates", few=torch.ones(2, 1), word="fast", nothing=None)
def _(lr):
    fit(method=PatchedFedAvg(lambda w, task: task.run(sgd, w, lr=lr)))


@case("planned rows", huge=HUGE, negative=-1)
def _(value):
    def work(w, task):
        plan = task.plan
        rows = torch.full_like(plan.rows, value)
        replace(task, known_plan=replace(plan, rows=rows)).run(sgd, w, lr=0.1)

    fit(method=PatchedFedAvg(work))


# A user's partitions.


class Cut:
    def __init__(self, rows):
        self.rows = rows

    def cut(self, y, seed):
        return self.rows


class Owners(OwnerPartition):
    clients = 2

    def __init__(self, owner):
        self.given = owner

    def assign_owners(self, y, seed):
        return self.given


@case(
    "cut:",
    **{
        "too large": [torch.tensor([0, 1]), torch.tensor([2, 50])],
        "huge": [torch.tensor([0, 1]), torch.tensor([2, HUGE])],
        "negative": [torch.tensor([0, 1]), torch.tensor([2, -1])],
        "real": [torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])],
        "truths": [torch.ones(50).bool(), torch.ones(50).bool()],
        "matrices": [torch.tensor([[0, 1]]), torch.tensor([[2, 3]])],
        "lists": [[0, 1], [2, 3]],
        "nobody": [],
        "nothing": None,
    },
)
def _(rows):
    fit(cut_by(Cut(rows)))


@case(
    "owner:",
    **{
        "too large": torch.full((50,), 2),
        "huge": torch.full((50,), HUGE),
        "below nobody": torch.full((50,), -2),
        "too few": torch.zeros(9).long(),
        "too many": torch.zeros(90).long(),
        "real": torch.zeros(50),
        "nothing": None,
    },
)
def _(owner):
    fit(cut_by(Owners(owner)))


def cut_by(partition):
    federation = make_federation()
    table = fl.data.Table(
        federation.train.store, torch.cat([federation.train.y, federation.test.y])[:50], federation.labels
    )
    return fl.Federation.from_table(table, partition)


# Other arguments of `fit` and of a result's methods.


@case(
    "start",
    short=torch.zeros(3),
    wide=torch.zeros(5, 40),
    few=torch.zeros(2, 21),
    no_number=torch.full((21,), float("nan")),
    complex=torch.zeros(21).to(torch.complex64),
    word="zero",
    objects=[object()],
)
def _(start):
    fit(start=start)


@case(
    "schedule",
    no_batch={"batch": 0},
    negative_batch={"batch": -3},
    real_batch={"batch": 2.5},
    word_batch={"batch": "some"},
    no_sample={"sample": 0},
    large_sample={"sample": 1.5},
    no_rounds={"rounds": 0},
    half={"dtype": "float16"},
    no_device={"device": "abacus"},
    no_engine={"engine": "fast"},
    no_score={"evaluate_every": -1},
    word_score={"evaluate_every": "often"},
    real_score={"evaluate_every": 1.5},
    nothing_score={"evaluate_every": None},
    no_training={"score_training": "never"},
    no_seed={"seed": "x"},
)
def _(schedule):
    fit(**schedule)


@case("resumed on fewer clients")
def _():
    federation = make_federation()
    few = replace(
        federation,
        clients=federation.clients[:3],
        train=federation.train.reorder([0, 1, 2]),
        test=federation.test.reorder([0, 1, 2]),
    )
    fit(federation, fl.Local(lr=0.1), rounds=3, resume=fit(few, fl.Local(lr=0.1)))


@case(
    "predicted",
    narrow=np.zeros((2, 5)),
    wide=np.zeros((2, 7)),
    no_number=np.full((2, 6), np.nan),
    word="rows",
    cube=np.zeros((2, 6, 6)),
)
def _(rows):
    fit().predict("0", rows)


@case("predicted for nobody")
def _():
    fit().predict("nobody", np.zeros((2, 6)))


def main(every):
    torch.set_num_threads(2)
    for name in list(CASES)[::every]:
        print(json.dumps([name]), flush=True)  # the last line says where a crash was
        try:
            CASES[name]()
            raised, message = None, ""
        except Exception as error:
            raised, message = type(error).__name__, str(error)
        print(json.dumps([name, raised, message]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
