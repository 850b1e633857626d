"""Slips of a first user in Python: each is one line that says what to do."""

import inspect

import numpy as np
import pandas as pd
import pytest
import torch

import fedlap as fl
import fedlap.graph
from fedlap.graph.client_vectors import compute_vectors

X = np.random.default_rng(0).normal(size=(8, 3))
WORDS = np.array(["ill", "well"] * 4)


def check_refusal(message, call, *args, **settings):
    """Check a call without the tests' type checks, as a user calls it."""
    with pytest.raises(fl.InputError, match=message) as error:
        (inspect.unwrap(call) if inspect.isfunction(call) else call)(*args, **settings)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"lr": 0.1}, r"tune: lr = 0.1; pass a list of values, such as \{'lr': \[0.1\]\}"),
        ({"lr": "0.1"}, "tune: lr = '0.1'; pass a list of values"),
        (["lr"], r"tune: vary = \['lr'\]; pass settings and values, such as"),
    ],
)
def test_values_to_tune_are_lists(vary, message, federation):
    check_refusal(message, fl.tune, fl.Local(), federation, fl.models.linear(), vary, rounds=1)


@pytest.mark.parametrize("vary", [{"lr": (0.1,)}, {"lr": range(1, 2)}], ids=str)
def test_any_sequence_of_values_is_taken(vary, federation):
    tuned = inspect.unwrap(fl.tune)(fl.Local(), federation, fl.models.linear(), vary, rounds=1, folds=2)
    assert len(tuned.tried) == 1


@pytest.mark.parametrize("y", [WORDS, WORDS.tolist(), WORDS.astype(object)], ids=["text", "list", "objects"])
def test_labels_are_numbered_and_named(y):
    message = r"labels are text; number them 0, 1, … and pass labels=\[…\], or use from_"
    check_refusal(f"data: client 'a': {message}", fl.Federation.from_arrays, {"a": (X, y), "b": (X, y)})
    check_refusal(message, fl.Federation.from_dataset, list(zip(X, y, strict=True)), "aaaabbbb")


def test_features_are_numbers():
    arrays = {"a": (X.astype(str), np.arange(8) % 2)}
    check_refusal(
        "data: client 'a': features are text; turn them into numbers first",
        fl.Federation.from_arrays,
        arrays,
    )


@pytest.mark.parametrize("name", ["nearest", "kernel", "weighted", "similar"])
def test_graphs_of_data_are_made_from_federations(name):
    frame = pd.DataFrame(X, columns=list("abc"))
    check_refusal(
        f"graph: {name} got a DataFrame; pass a federation, as from fl.Federation.from_dataframe",
        fl.graph.GRAPHS[name],
        frame,
    )


def test_what_clients_are_compared_by_has_a_name(federation):
    frame = pd.DataFrame(X, columns=list("abc"))
    message = "graph: by is a DataFrame; expected labels, means, metadata or places"
    check_refusal(message, compute_vectors, federation, frame)


@pytest.mark.parametrize("name", ["mps", "meta", "xpu:0"])
def test_other_devices_are_not_supported(name, federation, call):
    check_refusal(
        f"device = '{name}' is not supported; use cpu or cuda",
        fl.fit,
        fl.Local(),
        federation,
        fl.models.linear(),
        device=name,
    )
    code, _, err = call("run", "--device", name, "--rounds", "1")
    assert code == 2
    assert f"error: device = '{name}' is not supported; use cpu or cuda" in " ".join(err.split())


# Out of memory.


def test_a_model_that_no_memory_holds_is_one_line(federation):
    huge = fl.models.mlp((10**14,))  # 3,200 TB, more than the addresses of a process
    check_refusal("fit: out of memory", fl.fit, fl.Local(), federation, huge, rounds=1)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: not enough memory: you tried"
        ),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has 1 GiB"),
    ],
    ids=["python", "torch", "cuda"],
)
def test_memory_that_ends_during_training_is_one_line(error, federation):
    def on_round(_):
        raise error

    with pytest.raises(fl.InputError, match=r"fit: out of memory.*batch") as raised:
        fl.fit(fl.Local(), federation, fl.models.linear(), rounds=2, on_round=on_round)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is error


def test_other_errors_stay_what_they_are(federation):
    def on_round(_):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        fl.fit(fl.Local(), federation, fl.models.linear(), rounds=2, on_round=on_round)
