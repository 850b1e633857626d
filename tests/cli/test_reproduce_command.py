"""`fedlap reproduce` and `fedlap results`: every recipe in its smallest form, resuming, and mistakes."""

import json
import re
import shutil
from pathlib import Path

import pytest

from fedlap.cli.workers import run_processes
from fedlap.report.eta import Eta, format_duration
from fedlap.reproduce import recipe as recipes
from fedlap.reproduce.cell_results import ResultFolder, read_tuned_values
from fedlap.reproduce.recipe import find_recipe, list_recipes
from fedlap.reproduce.results_pages import build_results_pages, find_deviations
from small_recipes import SMALL

ROOT = Path(__file__).parents[2]


@pytest.fixture
def recipe_file(tmp_path):
    path = tmp_path / "digits-table.toml"
    path.write_text(SMALL)
    return str(path)


def smallest(recipe):
    """On the embedded digits: one cell of each kind of model, one round, one seed, two folds."""
    cells = {}
    for name, cell in recipe.cells.items():
        hidden = {"hidden": [4]} if cell.model["name"] == "mlp" else {}
        if cell.model["name"] != "cnn":
            model = {"name": cell.model["name"], **hidden}
            digits = {"data": {"name": "digits"}, "partition": {}, "model": model}
            cells.setdefault(cell.model["name"], (name, cell.model_copy(update=digits)))
    quick = recipe.quick.model_copy(
        update={"cells": [n for n, _ in cells.values()], "seeds": "0", "rounds": 1}
    )
    return recipe.model_copy(update={"cells": dict(cells.values()), "quick": quick})


# Those that are like another one are left to `make test-all`.
ALIKE = ("table-full-sampled", "table-scaling", "figure-dirichlet")
SMALLEST = [pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name for name in list_recipes()]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_every_recipe_runs_in_its_smallest_form(call, monkeypatch, name, tmp_path):
    recipe = smallest(find_recipe(name))
    monkeypatch.setattr(
        "fedlap.report.page.matplotlib_figures.render_figures", lambda section, places: {}
    )  # a second each
    monkeypatch.setattr("fedlap.cli.reproduce.find_recipe", lambda name: recipe)
    code, out, err = call("reproduce", name, "--quick")
    assert code == 0, err
    findings = ResultFolder(tmp_path / "runs" / "quick")
    for unit in recipe.quick_form().units():
        assert findings.has(unit, [0]), unit
        assert recipe.rows[unit.row].title in out
    page = (tmp_path / "runs" / "quick" / name / "page.html").read_text()
    assert recipe.title in page
    assert f"--quick --out {tmp_path / 'runs'}" in page


def test_a_recipe_of_ones_own_goes_on_where_it_was(call, recipe_file, monkeypatch, tmp_path):
    monkeypatch.setattr("fedlap.report.page.matplotlib_figures.render_figures", lambda section, places: {})
    code, out, err = call("reproduce", recipe_file, "--seeds", "0,3")
    assert code == 0, err
    assert "paper 90.00 ± 1.00" in out
    assert "Local: tuning, 20 runs" in err
    tables = tmp_path / "runs" / "digits-table" / "tables"
    assert re.search(r"FedU.*\d\d\.\d\d ± \d", (tables / "digits-table-steps.md").read_text("utf-8"))
    plain = (tables / "digits-table-steps.csv").read_text("utf-8")
    assert re.search(r'^FedU,"digits, convex",2,0,0\.3,\d\d\.\d+,\d\.\d+,90\.0,1\.0,0$', plain, re.MULTILINE)
    code, again, err = call("reproduce", recipe_file, "--seeds", "0,3")
    assert code == 0
    assert "2 of 2 rows are finished and loaded from" in err
    assert "tuning" not in err
    assert again == out
    _, _, err = call("reproduce", recipe_file, "--seeds", "0,3,5")
    assert "Local: tuning, 10 runs" in err


def test_data_that_cannot_be_had_are_said_and_the_rest_goes_on(call, recipe_file):
    absent = 'title = "none"\ndata = { name = "file", path = "none.csv" }\nmodel = { name = "linear" }\n'
    Path(recipe_file).write_text(f"{SMALL}\n[cells.none]\n{absent}")
    code, out, err = call("reproduce", recipe_file, "--seeds", "0")
    assert code == 1
    assert "none.csv" in err
    assert "digits, convex" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce"], "no recipes; pass names or --all"),
        (["reproduce", "table-down-sampled", "--all"], "both recipes and --all; pass names or --all"),
        (["reproduce", "table-one"], "table-down-sampled"),
        (["reproduce", "table-down-sampled", "--data", "hra"], "har"),
        (["reproduce", "table-down-sampled", "--cells", "har"], "har-convex"),
        (["reproduce", "table-down-sampled", "--readings", "epoch"], "epochs"),
        (["reproduce", "table-down-sampled", "--methods", "fedu2"], "fedu"),
        (["reproduce", "table-down-sampled", "--seeds", "a"], "--seeds a"),
        (["reproduce", "none.toml"], "cannot be read"),
    ],
)
def test_a_mistake_is_one_line(call, words, message):
    code, out, err = call(*words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert out == ""


@pytest.mark.slow
def test_results_are_written_from_what_was_found(call, recipe_file, monkeypatch, tmp_path):
    call("reproduce", recipe_file, "--seeds", "0,3")
    monkeypatch.setattr("fedlap.cli.results.list_recipes", lambda: [recipe_file])
    folder, to, tuned = tmp_path / "runs", tmp_path / "pages", tmp_path / "tuned"
    code, _, err = call("results", str(folder), "--to", str(to), "--tuned", str(tuned), out=False)
    assert code == 0
    assert "add a reason to recipe" in err  # four rounds are far from the invented 90
    assert "Digits" in (to / "README.md").read_text()
    assert "Digits" in (to / "digits-table.md").read_text()
    tuned_values = json.loads((tuned / "digits-table.json").read_text())
    assert set(tuned_values) == {f"digits-table/digits-convex-steps/{row}" for row in ("local", "fedu")}
    monkeypatch.setattr("fedlap.reproduce.cell_results.TUNED_FOLDER", tuned)
    _, _, err = call("reproduce", recipe_file, "--seeds", "0,3", "--out", str(tmp_path / "new"), out=False)
    assert "tuning" not in err
    assert "2 rows use the tuned values that are stored with the recipe; --tune" in err
    _, _, err = call(
        "reproduce", recipe_file, "--seeds", "0,3", "--tune", "--out", str(tmp_path / "anew"), out=False
    )
    assert "Local: tuning, 20 runs" in err
    code, _, err = call("results", str(tmp_path / "none"), out=False)
    assert code == 2
    assert "reproduce" in err


def load_committed_results():
    return [find_recipe(name) for name in list_recipes()], ResultFolder(ROOT / "results")


def test_result_pages_are_what_the_files_say():
    folder = ROOT / "docs" / "results"
    assert {path.name: path.read_text() for path in folder.iterdir()} == build_results_pages(
        *load_committed_results()
    )


def test_verdicts_take_two_screens():
    text = build_results_pages(*load_committed_results())["README.md"]
    assert text.count("\n") <= 120
    for mark in "✓✗?":
        assert f" {mark} " in text


def test_results_go_into_a_folder(call, tmp_path):
    code, _, err = call("results", str(ROOT / "results"), "--to", str(tmp_path / "R.md"), out=False)
    assert code == 2
    assert "expected a folder for pages" in err


def test_stored_values_are_what_the_files_say():
    all_recipes, findings = load_committed_results()
    for recipe in all_recipes:
        assert read_tuned_values(recipe.name) == findings.list_tuned_values(recipe)


def test_every_large_difference_to_the_paper_is_explained():
    all_recipes, findings = load_committed_results()
    assert [
        far for recipe in all_recipes for far in find_deviations(recipe, findings) if far.reason is None
    ] == []


def test_no_result_was_chosen_on_test_rows():
    for path in (ROOT / "results").glob("*/*.json"):
        for row in json.loads(path.read_text())["rows"].values():
            assert row["folds"] == 5
            for choice in row.get("choices", {}).values():
                assert choice["by"] in ("tuned", "fixed")
                assert (choice["validation"] is not None) == (choice["by"] == "tuned")
            assert all(last["round"] == 200 for last in row.get("last", []) if last is not None)


def test_the_rest_is_told_by_what_was_done():
    now = [0.0]
    remaining = Eta(10.0, lambda: now[0])
    assert remaining.describe() == ""
    now[0] = 30.0
    remaining.finish(2.5)
    assert remaining.estimate_seconds_left() == pytest.approx(90.0)
    remaining.add(1.0)
    remaining.add(1.5)
    assert remaining.describe() == "about 30 s left"
    assert [format_duration(seconds) for seconds in (89, 91, 5399, 5401)] == [
        "89 s",
        "2 min",
        "90 min",
        "1.5 h",
    ]


def test_recipes_are_found_beside_the_readme_too():
    assert (ROOT / "recipes").resolve() == recipes.RECIPE_FOLDER.resolve()


@pytest.mark.slow
def test_workers_make_the_same(call, recipe_file, monkeypatch, tmp_path):
    """Worker processes compute the cells; their messages are passed on, and one ledger has all runs."""
    monkeypatch.setattr("fedlap.report.page.matplotlib_figures.render_figures", lambda section, places: {})
    other = 'title = "other"\ndata = { name = "digits" }\nmodel = { name = "mlp", hidden = [4] }\n'
    Path(recipe_file).write_text(f"{SMALL}\n[cells.other]\n{other}")
    code, out, err = call("reproduce", recipe_file, "--seeds", "0,3", "--workers", "2", "--no-page")
    assert code == 0, err
    assert err.count("Local: tuning, 20 runs") == 2
    ledger = (tmp_path / "runs" / "ledger.jsonl").read_text()
    shutil.rmtree(tmp_path / "runs")
    code, again, err = call("reproduce", recipe_file, "--seeds", "0,3", "--no-page")
    assert code == 0, err
    assert again == out
    alone = (tmp_path / "runs" / "ledger.jsonl").read_text()
    assert {json.loads(line)["run"] for line in ledger.splitlines()} == {
        json.loads(line)["run"] for line in alone.splitlines()
    }


@pytest.mark.slow
def test_workers_share_the_rows_of_a_cell(call, recipe_file, monkeypatch, tmp_path):
    """One process computes a row and the rows that follow it, others run in parallel; no row is lost."""
    monkeypatch.setattr("fedlap.report.page.matplotlib_figures.render_figures", lambda section, places: {})
    more = """
[rows.fedavg]
title = "FedAvg"
algorithm = { name = "fedavg" }
grid = { lr = [0.1, 0.3] }

[rows.averaged]
title = "Followed"
algorithm = { name = "fedavg" }
follows = { lr = "fedavg" }
"""
    Path(recipe_file).write_text(SMALL + more)
    parts = []
    monkeypatch.setattr(
        "fedlap.cli.reproduce.run_processes",
        lambda commands, workers: parts.extend(commands) or run_processes(commands, workers),
    )
    code, out, err = call("reproduce", recipe_file, "--seeds", "0", "--workers", "3", "--no-page")
    assert code == 0, err
    rows = [part[part.index("--methods") + 1] for part in parts]
    assert sorted(rows) == ["fedavg,averaged", "local,fedu"]
    shutil.rmtree(tmp_path / "runs")
    code, again, err = call("reproduce", recipe_file, "--seeds", "0", "--no-page")
    assert code == 0, err
    assert again == out


@pytest.mark.slow
def test_a_worker_that_fails_is_told(call, recipe_file):
    absent = 'title = "none"\ndata = { name = "file", path = "none.csv" }\nmodel = { name = "linear" }\n'
    Path(recipe_file).write_text(f"{SMALL}\n[cells.none]\n{absent}")
    code, out, err = call("reproduce", recipe_file, "--seeds", "0", "--workers", "2", "--no-page")
    assert code == 1
    assert "none.csv" in err
    assert "Traceback" not in err
    assert "FedU" in out  # from the cell whose data exist
