"""All steps of a round, and scores, as one kernel on a CPU: the same as step by step, whatever the shapes."""

import platform
import subprocess
from dataclasses import replace
from itertools import accumulate, combinations_with_replacement, pairwise

import pytest
import torch

import affine_steps
import fedlap as fl
from fedlap.kernels import cpp_compiler, cpp_library
from fedlap.kernels.dense import BlockStep, DenseKernel

COMPILED = cpp_library.load_library(torch.float32) is not None
compiled = pytest.mark.skipif(not COMPILED, reason="no C++ compiler")

METHODS = {
    "fedu": lambda f, **work: fl.FedU(fl.Graph.complete(f.clients), lr=0.05, **work),
    "fedprox": lambda f, **work: fl.FedProx(proximal=0.3, lr=0.05, **work),
    "perfedavg": lambda f, **work: fl.PerFedAvg(adapt_lr=0.1, lr=0.05, **work),
    "pfedme": lambda f, **work: fl.PFedMe(regularisation=5.0, inner_lr=0.03, inner_steps=3, lr=0.05, **work),
    "mocha": lambda f, **work: fl.Mocha(fl.Graph.complete(f.clients), 0.1, **work),
    "scaffold": lambda f, **work: fl.Scaffold(lr=0.05, **work),
    "pfedgraph": lambda f, **work: fl.PFedGraph(similarity=2.0, lr=0.05, **work),
}
every_method = pytest.mark.parametrize("name", METHODS)


def make_federation(features, outputs=3, kind="numbers", sizes=(9, 2, 13, 5, 21)):
    """Return clients of unequal size, some with less than a batch."""
    draw = torch.Generator().manual_seed(7)
    arrays = {
        str(k): (
            torch.randint(0, 256, (n, 1, features), generator=draw).byte()
            if kind == "bytes"
            else torch.randn(n, features, generator=draw, dtype=torch.float64),
            torch.randint(0, outputs, (n,), generator=draw),
        )
        for k, n in enumerate(sizes)
    }
    federation = fl.Federation.from_arrays(arrays, labels=outputs, test_share=0.2, scale="none")
    return federation.standardize("client") if kind == "bytes" else federation


def both(method, federation, model, monkeypatch, **schedule):
    """By the kernel, and step by step; how often the kernel was used."""
    used, step = [], DenseKernel.__call__
    schedule = {"rounds": 2, "batch": 4, "dtype": "float64", "score_training": "always", **schedule}
    with monkeypatch.context() as patch:
        patch.setattr(
            DenseKernel, "__call__", lambda *args, **more: used.append(step(*args, **more)) or used[-1]
        )
        ours = fl.fit(method, federation, model, **schedule)
    with monkeypatch.context() as patch:
        patch.setattr(cpp_library, "load_library", lambda dtype: None)
        plain = fl.fit(method, federation, model, **schedule)
    return ours, plain, sum(used)


@compiled
@pytest.mark.parametrize("kind", ["numbers", "bytes"])
@pytest.mark.parametrize("features", [1, 7, 8, 9, 23, 40])
@every_method
def test_any_number_of_features(name, features, kind, monkeypatch):
    federation = make_federation(features, kind=kind)
    work = {"local_epochs": 1} if features % 2 else {"local_steps": 3}
    method = METHODS[name](federation, **work)
    ours, plain, used = both(method, federation, fl.models.linear(0.01), monkeypatch)
    assert used
    assert (ours.models - plain.models).abs().max() < 1e-10
    for score, other in zip(ours.scores, plain.scores, strict=True):
        assert score.loss == pytest.approx(other.loss, rel=1e-10)
        assert score.train_loss == pytest.approx(other.train_loss, rel=1e-10)
        assert score.accuracy == other.accuracy


@compiled
@pytest.mark.parametrize("hidden", [(1,), (11,), (8, 17), (24, 6, 5)], ids=str)
@pytest.mark.parametrize("outputs", [2, 7, 13])
@pytest.mark.parametrize("batch", [1, 6, 50])
def test_any_layers(hidden, outputs, batch, monkeypatch):
    federation = make_federation(19, outputs)
    method = METHODS["pfedme"](federation, local_epochs=1)
    ours, plain, used = both(method, federation, fl.models.mlp(hidden, l2=0.01), monkeypatch, batch=batch)
    assert used
    assert (ours.models - plain.models).abs().max() < 1e-10
    assert ours.scores[-1].loss == pytest.approx(plain.scores[-1].loss, rel=1e-10)


@compiled
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["numbers", "bytes"])
@pytest.mark.parametrize("batch", [1, 6, 50])
def test_steps_on_some_layers(layers, kind, batch, monkeypatch):
    federation, model = make_federation(19, kind=kind), fl.models.mlp((24, 6, 5), l2=0.01)
    method = fl.FedRep(layers, lr=0.05, local_epochs=2)
    ours, plain, used = both(method, federation, model, monkeypatch, batch=batch)
    assert used == 2 * 2  # rounds, and passes
    assert (ours.models - plain.models).abs().max() < 1e-10


@compiled
def test_other_layers_stay_to_the_last_bit():
    problem = affine_steps.make_problem("shift", hidden=(7, 6))
    kernel, before = DenseKernel.of(problem.clients), problem.w
    ends = [0, *accumulate((ins + 1) * outs for ins, outs in pairwise(problem.clients.model.network.widths))]
    for first, last in combinations_with_replacement(ends, 2):
        w = before.clone()
        assert kernel(w, problem.cohort, problem.plan, problem.lr, 1, BlockStep(first, last))
        assert torch.equal(w[:, :first], before[:, :first])
        assert torch.equal(w[:, last:], before[:, last:])
        assert not torch.equal(w[:, first:last], before[:, first:last]) or first == last


@compiled
def test_blocks_that_are_no_layers_are_left_to_the_caller():
    problem = affine_steps.make_problem("shift", hidden=(7,))
    kernel, w = DenseKernel.of(problem.clients), problem.w.clone()
    for block in (BlockStep(1, w.shape[1]), BlockStep(0, w.shape[1] - 1)):
        assert not kernel(w, problem.cohort, problem.plan, problem.lr, 1, block)
        assert torch.equal(w, problem.w)


@compiled
@every_method
def test_in_single_precision(name, monkeypatch):
    federation = make_federation(30)
    method = METHODS[name](federation, local_epochs=2)
    ours, plain, used = both(method, federation, fl.models.linear(), monkeypatch, dtype="float32")
    assert used
    assert (ours.models - plain.models).abs().max() < 3e-6


@compiled
@pytest.mark.parametrize("epochs", [True, False], ids=["epochs", "steps"])
@pytest.mark.parametrize("kind", ["numbers", "bytes"])
@pytest.mark.parametrize("hidden", [(), (11,), (24, 6, 5)], ids=str)
@pytest.mark.parametrize("terms", affine_steps.TERMS)
def test_affine_steps_are_those_of_a_plain_loop(terms, hidden, kind, epochs):
    problem = affine_steps.make_problem(terms, kind, hidden, epochs=epochs)
    ours = problem.run(DenseKernel.of(problem.clients))
    for tensor, exact in zip(ours, problem.run_plainly(), strict=True):
        assert (tensor - exact).abs().max() < 1e-12


@compiled
@pytest.mark.parametrize("features", [1, 5, 8, 9, 16, 17, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_shift_of_any_number_of_features(dtype, features):
    """Vectors of weights that are whole, that overlap the previous one, and none at all."""
    for terms in affine_steps.TERMS:
        problem = affine_steps.make_problem(terms, hidden=(7,), features=features, dtype=dtype)
        ours = problem.run(DenseKernel.of(problem.clients))
        for tensor, exact in zip(ours, problem.run_plainly(), strict=True):
            assert (tensor - exact).abs().max() < (1e-12 if dtype == torch.float64 else 2e-6)


@compiled
@pytest.mark.parametrize("name", ["anchor", "shift"])
def test_rows_that_are_not_contiguous_are_left_to_the_caller(name):
    problem = affine_steps.make_problem("anchor and shift")
    rows = getattr(problem.step, name)
    step = replace(problem.step, **{name: torch.stack([rows, rows], -1)[..., 0]})
    kernel, w = DenseKernel.of(problem.clients), problem.w.clone()
    assert not kernel(w, problem.cohort, problem.plan, problem.lr, 1, step)
    assert torch.equal(w, problem.w)


@compiled
def test_threads_change_no_bit(monkeypatch):
    """Neither how many, nor whose they are."""
    federation, before = make_federation(19, sizes=(40, 9, 31, 2, 25, 17)), torch.get_num_threads()
    method, model = METHODS["fedu"](federation, local_epochs=2), fl.models.mlp(9)

    def train():
        return fl.fit(method, federation, model, rounds=2, batch=4)

    try:
        torch.set_num_threads(1)
        one = train()
        torch.set_num_threads(3)
        three = train()
        monkeypatch.setattr(cpp_library, "_find_openmp", lambda: None)
        default = train()
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one.models, three.models)
    assert torch.equal(one.models, default.models)
    assert one.scores[-1].loss == three.scores[-1].loss == default.scores[-1].loss


@compiled
def test_one_model_for_all_is_scored_where_it_is(monkeypatch):
    federation = make_federation(19)
    ours, plain, used = both(fl.FedAvg(lr=0.05), federation, fl.models.mlp(5), monkeypatch, rounds=3)
    assert used
    assert ours.scores[-1].train_loss == pytest.approx(plain.scores[-1].train_loss, rel=1e-10)


@compiled
@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="another kind of processor")
@pytest.mark.parametrize(
    ("processor", "flag"), [("x86-64", "sse2"), ("haswell", "avx2"), ("skylake-avx512", "avx512f")]
)
def test_older_processors(processor, flag, alone, monkeypatch):
    """With narrower vectors, where this machine knows them."""
    if flag not in cpp_compiler._identify_processor().split():
        pytest.skip("this machine is older")
    flags = [
        f"-march={processor}" if option == "-march=native" else option for option in cpp_compiler.CPP_FLAGS
    ]
    monkeypatch.setattr(cpp_compiler, "CPP_FLAGS", flags)
    cpp_library.load_library.cache_clear()
    try:
        federation = make_federation(23, 7)
        method = METHODS["pfedme"](federation, local_epochs=1)
        ours, plain, used = both(method, federation, fl.models.mlp((11, 6)), monkeypatch)
        assert used
        assert (ours.models - plain.models).abs().max() < 1e-10
    finally:
        cpp_library.load_library.cache_clear()


@pytest.mark.parametrize("trouble", ["no compiler", "not found", "not a compiler", "no cache"])
def test_without_it_everything_goes_step_by_step(trouble, alone, monkeypatch, tmp_path):
    if trouble == "no cache":
        (tmp_path / "cache").write_text("not a folder")
    else:
        compiler = {"no compiler": "", "not found": "no-such-compiler -O2", "not a compiler": "false"}[
            trouble
        ]
        monkeypatch.setenv("CXX", compiler)
    cpp_library.load_library.cache_clear()
    try:
        assert cpp_library.load_library(torch.float32) is None
        federation = make_federation(19)
        result = fl.fit(METHODS["fedu"](federation), federation, fl.models.linear(), rounds=2, batch=4)
        assert result.models.isfinite().all()
    finally:
        cpp_library.load_library.cache_clear()


@compiled
def test_it_is_compiled_once(alone, monkeypatch, tmp_path):
    cpp_library.load_library.cache_clear()
    try:
        assert cpp_library.load_library(torch.float32) is not None
        (library,) = (tmp_path / "cache" / "fedlap" / "kernels").iterdir()
        cpp_library.load_library.cache_clear()
        monkeypatch.setattr(subprocess, "run", lambda *args, **more: pytest.fail("compiled again"))
        assert cpp_library.load_library(torch.float32) is not None
        assert library.exists()
    finally:
        cpp_library.load_library.cache_clear()
