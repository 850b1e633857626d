"""Several runs as one stack: each is what it would be alone."""

from dataclasses import replace

import pytest
import torch

import fedlap as fl
import reference
from fedlap.algorithms import GatheredRows
from fedlap.training.assemble import assemble
from fedlap.training.batched_updates import take_first
from fedlap.training.client_sampling import ClientSampler
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job, compute_stack_key
from fedlap.training.loop import play, play_rounds
from fedlap.training.run_tables import CohortIndex, RunTables
from fedlap.training.schedule import Schedule
from fedlap.training.state import list_tensors
from fit_results import same
from laws import METHODS, WORK
from stacked_jobs import STACKABLE, make_jobs


@pytest.mark.parametrize(
    ("work", "sample"),
    [
        pytest.param(WORK["steps"], 0.5, id="steps-0.5"),
        pytest.param(WORK["epochs"], 1.0, id="epochs-1.0"),
        pytest.param(WORK["steps"], 1.0, id="steps-1.0", marks=pytest.mark.slow),
        pytest.param(WORK["epochs"], 0.5, id="epochs-0.5", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", STACKABLE)
def test_a_stack_of_runs_is_each_of_them_alone(name, work, sample, federation, graph):
    schedule = {"rounds": 4, "batch": 4, "dtype": "float64", "evaluate_every": 2, "score_training": "always"}
    schedule["sample"] = sample if METHODS[name].sampled else 1.0
    many = make_jobs(name, work, federation, graph)
    seen = []
    together = fit_all(many, Schedule(**schedule), lambda run, score: seen.append((run, score.round)))
    for trial, result in zip(many, together, strict=True):
        alone = fl.fit(trial.algorithm, trial.federation, trial.model, seed=trial.seed, **schedule)
        assert (alone.models - result.models).abs().max() < 1e-9
        one, other = (
            [[v for k, v in s.as_dict().items() if k != "seconds" and v is not None] for s in run.scores]
            for run in (alone, result)
        )
        assert (torch.tensor(one) - torch.tensor(other)).abs().max() < 1e-5
    assert seen == [(run, round) for round in (2, 4) for run in range(len(many))]


@pytest.mark.parametrize("sample", [0.5, 1.0])
def test_folds_and_settings_of_a_dual_method_share_a_stack(sample, federation, graph):
    """Dual variables are as many as the rows of the largest client, another number for every fold."""
    settings = [
        {"strength": 0.3, "aggregation": 1.0},
        {"strength": 0.03, "aggregation": 0.5, "shrinkage": 0.02, "safety": 1.5},
        {"strength": 3.0, "drop": 0.3, "least_work": 0.4},
    ]
    many = [
        Job(
            fl.Mocha(graph, learn_every=3, work_seed=2, local_epochs=1, **changes),
            federation.fold(4, fold, 1),
            METHODS["mocha"].model,
            seed,
        )
        for fold, seed, changes in zip((0, 2, 3), (4, 5, 6), settings, strict=True)
    ]
    assert len({int(trial.federation.train.count.max()) for trial in many}) > 1
    how = {"batch": 4, "sample": sample, "dtype": "float64", "evaluate_every": 5, "score_training": "always"}
    together = fit_all(many, Schedule(20, **how))
    for trial, result in zip(many, together, strict=True):
        alone = fl.fit(trial.algorithm, trial.federation, trial.model, seed=trial.seed, rounds=20, **how)
        assert (alone.models - result.models).abs().max() < 1e-9
        assert alone.private.shape == result.private.shape  # so that either can resume from the other's
        assert (alone.private - result.private).abs().max() < 1e-9
        assert [s.gap for s in result.scores] == pytest.approx([s.gap for s in alone.scores], abs=1e-9)
    broken = fit_all(many, Schedule(7, **how))
    again = [replace(trial, progress=result.progress) for trial, result in zip(many, broken, strict=True)]
    for one, other in zip(fit_all(again, Schedule(20, **how)), together, strict=True):
        same(replace(one, progress=replace(one.progress, scores=other.scores)), other)


def test_settings_matter(federation, graph):
    """Else the law above could not fail."""
    many = make_jobs("fedprox", {"local_epochs": 2}, federation, graph)
    one, other, _ = fit_all(many, Schedule(rounds=2, batch=4, dtype="float64"))
    same = fl.fit(many[0].algorithm, federation, many[0].model, seed=6, rounds=2, batch=4, dtype="float64")
    assert (one.models - other.models).abs().max() > 1e-3
    assert (other.models - same.models).abs().max() > 1e-5


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_runs_draw_together_what_each_draws_alone(share, federation, graph):
    many = make_jobs("fedu", WORK["epochs"], federation, graph)
    many += [Job(many[0].algorithm, federation, many[0].model, seed) for seed in (5, 9)]
    stacked_runs = assemble(many, Schedule(sample=share)).method.runs
    sampler = ClientSampler.of(stacked_runs)
    assert sum(len(group.seeds) for group in sampler.groups) == (4 if share < 1 else 2)  # alike, drawn once
    rounds = range(3, 9)
    sizes = [run.cohort_size for run in stacked_runs]
    for number, everyone in zip(rounds, sampler.draw(rounds, torch.device("cpu")), strict=True):
        for trial, ids in zip(many, everyone.split(sizes), strict=True):
            names = trial.federation.clients
            chosen = reference.draw_cohort(list(names), trial.seed, number, share)
            assert sorted(names[k] for k in ids) == sorted(chosen)
            assert torch.equal(ids, ids.sort().values)


def test_a_pool_reads_and_writes_what_runs_would():
    generator = torch.Generator().manual_seed(1)
    runs = [
        (
            torch.randn(size, 2, generator=generator),
            (torch.randn(size + 1, 3, generator=generator), torch.zeros(())),
        )
        for size in (4, 3, 5)
    ]
    pool = RunTables((2, 1, 3))
    tables_of_runs = pool.contiguous_copy(runs)
    index = CohortIndex(
        torch.tensor([0, 3, 1, 0, 2, 4]), (2, 1, 3), torch.tensor([5, 0, 1, 4, 2, 3]), torch.arange(6)
    )
    inputs = [
        (GatheredRows(first, ids), GatheredRows(second, ids))
        for (first, (second, _)), ids in zip(tables_of_runs, index.ids_per_run, strict=True)
    ]
    for place, leaf in enumerate(pool.gather(inputs, index)):
        by_hand = [run[0] if place == 0 else run[1][0] for run in runs]
        whole = torch.cat([table[ids] for table, ids in zip(by_hand, index.ids_per_run, strict=True)])
        assert torch.equal(leaf, whole[index.order])
    rows = torch.randn(6, 2, generator=generator)
    for tables in (
        [first for first, _ in tables_of_runs],
        [first.clone() for first, _ in tables_of_runs],
    ):  # in the pool, or not
        after = pool.scatter(tables, index, rows)
        for table, (old, _), ids, new in zip(
            after, runs, index.ids_per_run, rows.split((2, 1, 3)), strict=True
        ):
            assert torch.equal(table, old.index_copy(0, ids, new))
    assert all(
        a is b
        for a, (b, _) in zip(
            pool.scatter([f for f, _ in tables_of_runs], index, rows), tables_of_runs, strict=True
        )
    )


@torch.no_grad()
@pytest.mark.parametrize("name", ["fedu", "local", "ditto", "fedavg"])
def test_the_end_of_a_round_is_a_function_that_can_be_recorded(name, federation, graph):
    """On a GPU it is replayed in rounds whose beginnings differ."""
    many, schedule = make_jobs(name, WORK["epochs"], federation, graph), Schedule(sample=0.5, batch=4)
    plain = assemble(many, schedule)
    *_, (_, expected, sent) = play_rounds(plain.method, plain.engine, plain.server, range(1, 4))
    training = assemble(many, schedule)
    engine, server = training.engine, training.server
    for round in range(1, 4):
        cohort = engine.sampler.draw(round)
        again = cohort.with_tensors(cohort.collect_tensors())
        server, traffic = play(training.method, engine, server, round, again)
        server, engine.private = engine.copy_states(server)
    assert traffic == sent
    states = (tuple(server), tuple(engine.private)), (tuple(expected), tuple(plain.engine.private))
    pairs = zip(*map(list_tensors, states), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_learned_graph_waits_until_divergence_is_found(federation):
    graph, model = fl.Graph.complete(federation.clients), fl.models.linear(l2=1.0)
    methods = [fl.FedULearned(graph, strength=0.01, lr=lr, allow_unstable=True) for lr in (0.05, 1e30)]
    jobs = [Job(method, federation, model) for method in methods]
    steady, diverged = fit_all(jobs, Schedule(rounds=12, evaluate_every=0))
    assert isinstance(diverged, fl.DivergedError)
    alone = fl.fit(methods[0], federation, model, rounds=12, evaluate_every=0)
    assert torch.allclose(steady.models, alone.models, atol=1e-5)


def test_one_that_diverges_leaves_the_others_alone(federation, graph):
    model = fl.models.linear(l2=1.0)
    many = [Job(fl.Local(lr=lr), federation, model) for lr in (0.05, 1e30, 0.01)]
    good, bad, also = fit_all(many, Schedule(rounds=5))
    assert isinstance(bad, fl.DivergedError)
    assert "lower lr (now 1e+30)" in str(bad)
    for lr, result in ((0.05, good), (0.01, also)):
        assert len(result.scores) == 5
        assert torch.allclose(result.models, fl.fit(fl.Local(lr=lr), federation, model, rounds=5).models)


@pytest.mark.parametrize(
    "other",
    [
        lambda f, m: Job(fl.Local(), f, fl.models.linear(l2=0.1)),
        lambda f, m: Job(fl.FedAvg(), f, m),
        lambda f, m: Job(fl.Local(local_steps=3), f, m),
        lambda f, m: Job(fl.L2GD(), f, m),
    ],
    ids=["model", "method", "work", "not steady"],
)
def test_what_does_not_go_together_is_refused(other, federation):
    model = fl.models.linear()
    with pytest.raises(fl.InputError, match="these runs cannot be batched: they must share"):
        fit_all([Job(fl.Local(), federation, model), other(federation, model)], Schedule())


def test_a_method_that_is_not_steady_is_alone(federation, graph):
    one = Job(fl.L2GD(), federation, fl.models.linear())
    assert compute_stack_key(one) != compute_stack_key(one)
    fedu = Job(fl.FedU(graph, 0.1), federation, fl.models.linear())
    assert compute_stack_key(fedu) == compute_stack_key(
        Job(fl.FedU(graph, 0.2, 0.01), federation, fl.models.linear(), 3)
    )
    sampled = Job(fl.FedU(graph, 0.1, neighbours="sampled"), federation, fl.models.linear())
    assert compute_stack_key(fedu) != compute_stack_key(sampled)


def test_a_setting_per_client_is_cut_to_the_active_ones():
    column = torch.tensor([[1.0], [10.0], [100.0]])
    assert torch.equal(take_first(column, 2), column[:2])
    assert take_first(0.5, 2) == 0.5
