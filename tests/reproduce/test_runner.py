"""Reproducing: what is chosen, what is trained, what is stored, and resuming after a stop."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.errors import InputError, StoppedError
from fedlap.experiments.outcomes import compute_client_accuracies
from fedlap.experiments.prepare import Loader
from fedlap.reproduce.cell_results import ResultFolder, RowResult
from fedlap.reproduce.ledger import Ledger
from fedlap.reproduce.recipe import Unit
from fedlap.reproduce.runner import Reproducer, ReproductionCallbacks, estimate_work
from small_recipes import small

SEEDS = [0, 3]


def unit_of(recipe, row):
    return Unit(recipe, "digits-convex", "steps", row)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Both rows of the small recipe, and the runs that were trained for them."""
    folder = tmp_path_factory.mktemp("reproduced")
    recipe, stacks = small(folder), []
    callbacks = ReproductionCallbacks(lambda unit, stage, runs: stacks.append((unit.row, stage, runs)))
    maker = Reproducer(Ledger(folder / "ledger.jsonl"), SEEDS, callbacks=callbacks)
    rows = {row: maker.run_row(unit_of(recipe, row)) for row in ("local", "fedu")}
    return folder, recipe, stacks, rows


def test_values_are_those_that_tune_chooses(done):
    _, _, _, rows = done
    for seed in SEEDS:
        federation = fl.data.load("digits", seed)
        best = fl.tune(
            fl.Local(local_steps=5), federation, fl.models.linear(l2=0.001), {"lr": [0.03, 0.3]},
            rounds=4, seed=seed,
        ).best  # fmt: skip
        choice = rows["local"]["choices"][str(seed)]
        assert choice["values"] == best.values
        assert choice["by"] == "tuned"
        assert choice["validation"] == pytest.approx(best.validation.mean(), abs=1e-12)


def test_scores_are_those_of_fit_with_the_chosen_values(done):
    _, _, _, rows = done
    for place, seed in enumerate(SEEDS):
        values = rows["fedu"]["choices"][str(seed)]["values"]
        federation = fl.data.load("digits", seed)
        method = fl.FedU(fl.Graph.complete(federation.clients), local_steps=5, **values)
        result = fl.fit(method, federation, fl.models.linear(l2=0.001), rounds=4, seed=seed, evaluate_every=2)
        assert rows["fedu"]["last"][place]["accuracy"] == pytest.approx(result.scores[-1].accuracy, abs=1e-6)
        accuracies = compute_client_accuracies(result)
        assert list(accuracies) == list(federation.clients)
        assert np.mean(list(accuracies.values())) == pytest.approx(result.scores[-1].accuracy_mean, abs=1e-12)


def test_a_row_that_follows_has_the_values_of_the_other(done):
    _, _, _, rows = done
    for seed in map(str, SEEDS):
        assert rows["fedu"]["choices"][seed]["values"]["lr"] == rows["local"]["choices"][seed]["values"]["lr"]


def test_curves_and_clients_are_means_over_seeds(done):
    _, _, _, rows = done
    row = rows["local"]
    assert row["curves"]["round"] == [2, 4]
    last = [score["accuracy"] for score in row["last"]]
    assert row["curves"]["accuracy"][-1] == pytest.approx(np.mean(last), abs=1e-6)
    assert row["curves"]["accuracy_std"][-1] == pytest.approx(np.std(last), abs=1e-6)
    assert len(row["clients"]) == len(fl.data.load("digits").clients)


def test_candidates_and_folds_and_seeds_are_one_stack(done):
    _, _, stacks, _ = done
    assert stacks == [
        ("local", "tuning", 2 * 5 * 2), ("local", "training", 2),
        ("fedu", "tuning", 2 * 5 * 2), ("fedu", "training", 2),
    ]  # fmt: skip


def test_rows_that_differ_in_settings_alone_are_one_stack(done, tmp_path):
    _, recipe, _, _ = done
    fedu = recipe.rows["fedu"].model_copy(update={"grid": {}})
    weak, strong = (
        fedu.model_copy(update={"algorithm": {"name": "fedu", "strength": strength}})
        for strength in (0.001, 0.01)
    )
    recipe = recipe.model_copy(
        update={"rows": {"local": recipe.rows["local"], "weak": weak, "strong": strong}}
    )
    stacks: list[tuple[str, str, int]] = []
    callbacks = ReproductionCallbacks(lambda unit, stage, runs: stacks.append((unit.row, stage, runs)))
    units = list(recipe.units())
    steps = [unit for unit in units if unit.place == unit_of(recipe, "weak").place]
    maker = Reproducer(Ledger(tmp_path / "ledger.jsonl"), SEEDS, callbacks=callbacks)
    together = {unit.row: maker.run_row(unit, units) for unit in steps}
    assert stacks == [("local", "tuning", 2 * 5 * 2), ("local", "training", 2), ("weak", "training", 2 * 2)]
    apart = Reproducer(Ledger(tmp_path / "apart.jsonl"), SEEDS)
    for unit in steps:
        for one, other in zip(together[unit.row]["last"], apart.run_row(unit)["last"], strict=True):
            assert one == pytest.approx(other, abs=1e-6)
    assert together["weak"]["last"] != together["strong"]["last"]


def test_nothing_is_made_twice(done):
    folder, recipe, _, rows = done
    again: list[str] = []
    callbacks = ReproductionCallbacks(lambda unit, stage, runs: again.append(stage))
    maker = Reproducer(Ledger(folder / "ledger.jsonl"), SEEDS, callbacks=callbacks)
    row = maker.run_row(unit_of(recipe, "fedu"))
    assert again == []
    for key in ("choices", "last", "curves", "clients"):
        assert row[key] == rows["fedu"][key]


def test_one_more_seed_makes_its_own_runs_alone(done, tmp_path):
    folder, recipe, _, _ = done
    (tmp_path / "ledger.jsonl").write_bytes((folder / "ledger.jsonl").read_bytes())
    more: list[int] = []
    maker = Reproducer(
        Ledger(tmp_path / "ledger.jsonl"),
        [*SEEDS, 5],
        callbacks=ReproductionCallbacks(lambda unit, stage, runs: more.append(runs)),
    )
    maker.run_row(unit_of(recipe, "local"))
    assert more == [10, 1]


def test_test_rows_have_no_say_in_what_is_chosen(done):
    folder, recipe, _, rows = done

    class Spoiled(Loader):
        def load(self, experiment):
            federation, graph = super().load(experiment)
            if experiment.fold is not None:  # a fold's test rows are training rows
                return federation, graph
            y = (federation.test.y + 1) % len(federation.labels)
            return replace(federation, test=replace(federation.test, y=y)), graph

    maker = Reproducer(Ledger(folder / "spoiled.jsonl"), SEEDS, loader=Spoiled())
    row = maker.run_row(unit_of(recipe, "local"))
    assert row["choices"] == rows["local"]["choices"]
    assert row["last"] != rows["local"]["last"]


def test_a_stop_loses_no_stack_that_was_done(done, tmp_path):
    _, recipe, _, rows = done
    stages: list[str] = []

    def stopping():
        return stages == ["tuning", "training"]

    path = tmp_path / "ledger.jsonl"
    callbacks = ReproductionCallbacks(lambda unit, stage, runs: stages.append(stage), should_stop=stopping)
    with pytest.raises(StoppedError):
        Reproducer(Ledger(path), SEEDS, callbacks=callbacks).run_row(unit_of(recipe, "local"))
    stages.clear()
    callbacks = ReproductionCallbacks(lambda unit, stage, runs: stages.append(stage))
    row = Reproducer(Ledger(path), SEEDS, callbacks=callbacks).run_row(unit_of(recipe, "local"))
    assert stages == ["training"]
    assert row["last"] == rows["local"]["last"]


def test_a_line_that_was_not_written_to_its_end_is_made_again(done, tmp_path):
    folder, recipe, _, rows = done
    path = tmp_path / "ledger.jsonl"
    path.write_bytes((folder / "ledger.jsonl").read_bytes()[:-40])
    made_again: list[int] = []
    maker = Reproducer(
        Ledger(path),
        SEEDS,
        callbacks=ReproductionCallbacks(lambda unit, stage, runs: made_again.append(runs)),
    )
    row = maker.run_row(unit_of(recipe, "fedu"))
    assert made_again == [1]
    assert row["last"][0] == rows["fedu"]["last"][0]
    assert path.read_bytes().endswith(b"}\n")
    assert all(json.loads(line) for line in path.read_bytes().splitlines())
    path.write_bytes(b"nonsense\n")
    with pytest.raises(InputError, match="line 1 is damaged"):
        Ledger(path)


def test_stored_values_are_used_unless_the_recipe_has_changed(done, tmp_path):
    _, recipe, _, _ = done
    unit = unit_of(recipe, "local")
    values = {str(seed): {"lr": 0.03} for seed in SEEDS}
    stored = {f"{unit.place}/local": {"signature": unit.signature, "values": values}}
    stages: list[str] = []
    callbacks = ReproductionCallbacks(lambda unit, stage, runs: stages.append(stage))
    row = Reproducer(Ledger(tmp_path / "a"), SEEDS, stored=stored, callbacks=callbacks).run_row(unit)
    assert stages == ["training"]
    assert {choice["by"] for choice in row["choices"].values()} == {"stored"}
    changed = small(tmp_path, ("rounds = 4", "rounds = 2"))
    row = Reproducer(Ledger(tmp_path / "b"), SEEDS, stored=stored).run_row(unit_of(changed, "local"))
    assert {choice["by"] for choice in row["choices"].values()} == {"tuned"}


def test_values_go_on_along_ladders_where_the_best_is_at_an_end(tmp_path):
    ladder = [0.0001, 0.001, 0.01, 0.1]
    recipe = small(
        tmp_path, ("[quick]", f"[ladders]\nlr = {ladder}\n\n[quick]"), ("[0.03, 0.3]", "[0.001, 0.01]")
    )
    row = Reproducer(Ledger(tmp_path / "a"), SEEDS).run_row(unit_of(recipe, "local"))
    whole = small(tmp_path, ("[0.03, 0.3]", str(ladder)))
    other = Reproducer(Ledger(tmp_path / "b"), SEEDS).run_row(unit_of(whole, "local"))
    assert {choice["values"]["lr"] for choice in row["choices"].values()} == {
        0.1
    }  # few rounds need a large one
    assert row["choices"] == other["choices"]
    assert row["last"] == other["last"]
    assert row["signature"] != other["signature"]
    unchanged = small(
        tmp_path,
        ("[quick]", f"[ladders]\nlr = {ladder}\n\n[quick]"),
        ("[cells.digits-convex]", "[cells.digits-convex]\nwithin = ['steps']"),
    )
    assert unit_of(unchanged, "local").signature == unit_of(small(tmp_path), "local").signature


def test_what_is_unstable_is_told_with_its_number(tmp_path):
    recipe = small(tmp_path, ("strength = [0.001, 0.01]", "strength = [10.0, 20.0]"))
    maker = Reproducer(Ledger(tmp_path / "ledger"), [0])
    row, rate = (
        maker.run_row(unit_of(recipe, "fedu")),
        maker.choose_values(unit_of(recipe, "local"))[0].values["lr"],
    )
    assert row["product"] == pytest.approx(rate * 5 * 10.0 * 20)
    assert RowResult(row).unstable
    assert not RowResult(row).finished
    assert "allow_unstable" in row["refused"]


def test_findings_are_kept_and_found(done, tmp_path):
    _, recipe, _, rows = done
    findings = ResultFolder(tmp_path)
    federation = fl.data.load("digits")
    for name in ("fedu", "local"):
        assert not findings.has(unit_of(recipe, name), SEEDS)
        findings.write(unit_of(recipe, name), rows[name], federation)
        assert findings.has(unit_of(recipe, name), SEEDS)
    assert not findings.has(unit_of(recipe, "fedu"), [0, 1])
    alone = recipe.narrow([], [], [], ["local"])
    findings.write(unit_of(alone, "local"), rows["local"], federation)
    assert list(findings.read_rows(recipe, "digits-convex", "steps")) == ["local", "fedu"]
    changed = small(tmp_path, ("rounds = 4", "rounds = 2"))
    assert findings.read_rows(changed, "digits-convex", "steps") == {}
    counts = findings.read(recipe.name, "digits-convex", "steps")["clients"]
    assert torch.tensor(counts["train"]).sum(1).tolist() == federation.train.count.tolist()
    tuned = findings.list_tuned_values(recipe)
    assert (
        tuned[f"{recipe.name}/digits-convex-steps/fedu"]["values"]["3"]
        == rows["fedu"]["choices"]["3"]["values"]
    )
    findings.path(recipe.name, "digits-convex", "steps").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        findings.read_rows(recipe, "digits-convex", "steps")


def test_more_work_weighs_more(done):
    _, recipe, _, _ = done
    loader, unit = Loader(), unit_of(recipe, "fedu")
    assert estimate_work(unit, [0, 1], loader).total == pytest.approx(
        2 * estimate_work(unit, [0], loader).total
    )
    assert estimate_work(unit_of(recipe, "fedu"), [0], loader) == estimate_work(
        unit_of(recipe, "local"), [0], loader
    )
    assert estimate_work(unit, [0], loader).rounds == 4 * (
        5 * 2 + 1
    )  # as many as are trained, see the stacks above
