"""Recipes: what they say, how they are narrowed, and mistakes in a user's recipe."""

import tomllib
from pathlib import Path

import pytest

from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.reproduce.recipe import RECIPE_FOLDER, Unit, find_recipe, list_recipes
from small_recipes import small

every_recipe = pytest.mark.parametrize("name", list_recipes())


@every_recipe
def test_every_row_of_every_recipe_is_an_experiment(name):
    for unit in find_recipe(name).units():
        values = {setting: candidates[-1] for setting, candidates in unit.grid().items()}
        values |= dict.fromkeys(find_recipe(name).rows[unit.row].follows, 0.001)
        experiment = unit.build_experiment(values)
        for setting, value in values.items():
            assert experiment.algorithm[setting] == value
        assert experiment.rounds == 200
        assert experiment.batch == 20


@every_recipe
def test_quick_forms_have_every_row_and_are_small(name):
    whole, quick = find_recipe(name), find_recipe(name).quick_form()
    assert set(quick.rows) == set(whole.rows)
    assert {unit.row for unit in quick.units()} == set(whole.rows) - {
        row for row in whole.rows if all(row in whole.cells[cell].without for cell in quick.cells)
    }
    assert quick.common["rounds"] <= 5
    assert all(len(values) <= 2 for unit in quick.units() for values in unit.grid().values())


def test_the_six_experiments_of_the_paper_are_there():
    assert set(list_recipes()) >= {
        "figure-strengths", "figure-graphs", "figure-dirichlet",
        "table-down-sampled", "table-full-multi-task", "table-full-sampled",
    }  # fmt: skip
    for name in list_recipes():
        assert set(find_recipe(name).readings) == {"steps", "epochs"}
        scales = {cell.data["scale"] for cell in find_recipe(name).cells.values()}
        assert scales  # stated, not left to a default


@every_recipe
def test_sampled_recipes_have_our_method(name):
    """A method with passed steps differs from FedU only if some clients are not sampled."""
    recipe = find_recipe(name)
    assert ("fedu-passing" in recipe.rows) == (recipe.common["sample"] < 1)


@every_recipe
def test_claims_about_our_method_say_which_seeds_designed_it(name):
    for claim in find_recipe(name).claims:
        assert (claim.row == "fedu-passing") == ("seeds 5 to 9 were seen" in claim.note)


def test_cells_have_the_papers_numbers():
    # Sums over each table's rows, by hand from the text, so that a slip of one digit is seen.
    sums = {
        "table-down-sampled": {"fedu": 642.05, "mocha": 275.82, "afl": 589.34},
        "table-full-multi-task": {"fedu": 581.58, "local": 572.83, "global": 539.81},
    }
    for name, rows in sums.items():
        for row, total in rows.items():
            cells = find_recipe(name).cells.values()
            assert sum(cell.paper[row][0] for cell in cells if row in cell.paper) == pytest.approx(total)


def test_a_quick_form_changes_the_signature_and_the_seeds_do_not(tmp_path):
    recipe = small(tmp_path)
    one, quick = next(recipe.units()), next(recipe.quick_form().units())
    assert one.signature != quick.signature
    assert one.signature == next(recipe.model_copy(update={"seeds": "0"}).units()).signature


def test_a_row_depends_on_the_row_it_follows(tmp_path):
    before = Unit(small(tmp_path), "digits-convex", "steps", "fedu").signature
    changed = small(tmp_path, ("grid = { lr = [0.03, 0.3] }", "grid = { lr = [0.03, 0.1] }"))
    assert Unit(changed, "digits-convex", "steps", "fedu").signature != before


def test_rows_come_after_those_they_follow():
    for name in list_recipes():
        seen: set[tuple[str, str]] = set()
        for unit in find_recipe(name).units():
            for other in unit.recipe.rows[unit.row].follows.values():
                assert (unit.place, other) in seen
            seen.add((unit.place, unit.row))


def test_narrowing_keeps_what_rows_follow():
    recipe = find_recipe("table-down-sampled").narrow(["har"], ["har-convex"], ["steps"], ["fedu-learned"])
    assert set(recipe.rows) == {"fedu", "fedu-learned"}
    assert set(recipe.readings) == {"steps"}
    assert set(recipe.cells) == {"har-convex"}
    assert find_recipe("table-down-sampled").narrow(["mnist"], ["har-convex"], [], []).cells == {}


def test_all_combinations_of_a_grid(tmp_path):
    unit = Unit(small(tmp_path), "digits-convex", "steps", "fedu")
    assert unit.list_candidates({"lr": 0.3}) == [
        {"strength": 0.001, "lr": 0.3},
        {"strength": 0.01, "lr": 0.3},
    ]
    assert isinstance(unit.build_experiment(unit.list_candidates({"lr": 0.3})[0]), Experiment)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('against = ["local"]', 'against = ["nobody"]', "nobody"),
        ('lr = "local"', 'lr = "nobody"', "rows.fedu.follows"),
        ("paper = { fedu = [90.0, 1.0] }", "paper = { fedu = [90.0] }", "mean and the standard deviation"),
        ("paper = { fedu = [90.0, 1.0] }", "paper = { other = [90.0, 1.0] }", "other"),
        ('title = "Digits"', 'title = "Digits"\ntitel = "Digits"', "titel"),
        ('title = "Digits"', "", "title is missing; a recipe needs it"),
        ("[common]", "[commons]", "common"),
        ("[quick]", "[ladders]\nlr = [0.1, 0.01]\n\n[quick]", "ladders.lr"),
        ("[cells.digits-convex]", "[cells.digits-convex]\nwithin = ['step']", "did you mean 'steps'"),
        ("[cells.digits-convex]", "[cells.digits-convex]\ntuning_rounds = { epoch = 5 }", "tuning_rounds"),
    ],
)
def test_a_mistake_in_ones_own_recipe_is_one_line(tmp_path, old, new, message):
    with pytest.raises(InputError, match="digits-table") as error:
        small(tmp_path, (old, new))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_recipe_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="table-down-sampled"):
        find_recipe("table-down-sample")
    with pytest.raises(InputError, match="cannot be read"):
        find_recipe(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(InputError, match="not a TOML file"):
        find_recipe(str(tmp_path / "bad.toml"))


def test_recipes_travel_with_the_package():
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    data = settings["tool"]["setuptools"]["package-data"]["fedlap"]
    assert "reproduce/recipes/*.toml" in data
    assert "reproduce/recipes/tuned/*.json" in data
    assert RECIPE_FOLDER.is_dir()
