"""A client's file, read by the plan: the rows of a simulation bit for bit, and errors that quote no cell."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch

import fedlap as fl
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.site_data import check_shapes, describe_site, load_site
from user_tables import write

pytestmark = pytest.mark.filterwarnings("ignore::fedlap.errors.DataWarning")

ROWS = 150
SITES = ("north", "south", "east")
_rng = np.random.default_rng(11)
FRAME = pd.DataFrame(
    {
        "row": np.arange(ROWS),  # a column that no plan uses
        "hospital": _rng.choice(SITES, ROWS, p=[0.5, 0.3, 0.2]),
        "age": _rng.normal(50, 9, ROWS),
        "dose": _rng.integers(0, 9, ROWS),
        "soil": _rng.choice(["clay", "loam", "sand"], ROWS),
        "ward": _rng.choice(["1", "2", "10"], ROWS),
        "day": (pd.Timestamp("2020-01-01") + pd.to_timedelta(_rng.integers(0, 300, ROWS), "D")).astype(str),
        "cost": _rng.normal(1e3, 20, ROWS),
        "outcome": _rng.choice(["ill", "well"], ROWS),
        "grade": _rng.choice([1, 2, 10], ROWS),
        "alive": _rng.choice([True, False], ROWS),
    }
)
SOIL, WARD = ["clay", "loam", "sand"], ["1", "10", "2"]  # in the order of a simulation
TASKS = {
    "real": {"label": "cost"},
    "whole": {"label": "grade"},
    "text": {"label": "outcome", "task": "classification", "labels": ["ill", "well"]},
    "numbers": {"label": "grade", "task": "classification", "labels": [1, 2, 10]},
    "booleans": {"label": "alive", "task": "classification", "labels": [False, True]},
}
COLUMNS = {
    "numbers": {"features": ["dose", "age"]},
    "levels": {"features": ["soil", "age", "ward"], "levels": {"soil": SOIL, "ward": WARD}},
    "dates": {"features": ["dose", "day"], "dates": {"day": "2020-01-01"}},
}


def punch_holes(frame):
    """Return the frame with missing cells in features and labels, and with a client that has none."""
    holes = frame.astype(object).copy()
    rows = np.random.default_rng(4)
    for column in ("age", "soil", "outcome", "cost", "day"):
        holes.loc[rows.choice(len(frame), 6, replace=False), column] = None
    return holes


def simulate(path, plan, seed):
    """Return the unscaled federation of the simulation of one file with a column of clients."""
    return fl.data.load(
        "file", path=path, client="hospital", label=plan.label, features=list(plan.features), task=plan.task,
        levels=[name for name in plan.levels if name == "ward"], missing=plan.missing,
        test_share=plan.test_share, seed=seed, scale="none",
    )  # fmt: skip


def assert_equal_rows(site, federation, name):
    k = federation.clients.index(name)
    assert site.clients == (name,)
    assert (site.labels, site.features, site.target) == (
        federation.labels,
        federation.features,
        federation.target,
    )
    for mine, rows in ((site.train, federation.train), (site.test, federation.test)):
        x, y = rows.client(k)
        assert torch.equal(mine.x, x)
        assert torch.equal(mine.y, y)
        assert mine.x.dtype == x.dtype
        assert mine.count.tolist() == [len(x)]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("columns", COLUMNS)
def test_sites_have_the_rows_of_the_simulation_of_one_file(kind, task, columns, tmp_path):
    plan = DataPlan.of({**COLUMNS[columns], **TASKS[task], "test_share": 0.3})
    federation = simulate(write(tmp_path / f"all.{kind}", FRAME), plan, 5)
    if plan.dates:  # The simulation counts from the first training date, the sites from the plan's.
        first = pd.Timestamp("1970-01-01") + pd.Timedelta(federation.encoding.columns[1].origin, "D")
        plan = DataPlan.of({**plan.to_dict(), "dates": {"day": str(first.date())}})
    for name in SITES:
        rows = FRAME[FRAME.hospital == name].drop(columns="hospital")
        rows = rows[rng_order(rows.columns, name)]
        file = write(tmp_path / f"{name}.{kind}", rows)
        assert_equal_rows(load_site(plan, name, file, 5), federation, name)
        assert_equal_rows(
            load_site(plan, name, str(tmp_path / f"all.{kind}"), 5, client="hospital"), federation, name
        )


def rng_order(columns, name):
    """Return the columns in an order that depends on the name."""
    return list(np.random.default_rng(len(name)).permutation(list(columns)))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("label", ["cost", "outcome"])
def test_dropped_rows_are_those_of_the_simulation(kind, label, tmp_path):
    holes = punch_holes(FRAME).astype({"age": float, "cost": float})
    if kind == "csv" and label == "outcome":
        holes = holes.drop(index=holes.index[holes.outcome.isna()])  # "" is no class of text in a CSV file
    task = TASKS["real" if label == "cost" else "text"]
    plan = DataPlan.of({**COLUMNS["levels"], **task, "missing": "drop"})
    federation = simulate(write(tmp_path / f"all.{kind}", holes), plan, 0)
    for name in SITES:
        file = write(tmp_path / f"{name}.{kind}", holes[holes.hospital == name])
        site = load_site(plan, name, file, 0)
        assert_equal_rows(site, federation, name)
        used = holes[holes.hospital == name][[*plan.features, label]]
        lost = int(used.isna().any(axis=1).sum())
        assert site.notes == (
            (f"{lost} of {len(used)} rows have missing values and are dropped",) * bool(lost)
        )


def test_dialects_are_those_of_the_simulation(tmp_path):
    plan = DataPlan.of({**COLUMNS["levels"], **TASKS["real"]})
    federation = simulate(write(tmp_path / "all.csv", FRAME), plan, 2)
    rows = FRAME[FRAME.hospital == "south"]
    (tmp_path / "own.csv").write_bytes(rows.to_csv(index=False, sep=";", decimal=",").encode("utf-8-sig"))
    assert_equal_rows(load_site(plan, "south", str(tmp_path / "own.csv"), 2), federation, "south")
    rows.to_csv(tmp_path / "own.csv", sep="|")  # with an index, which has no name
    assert_equal_rows(load_site(plan, "south", str(tmp_path / "own.csv"), 2), federation, "south")
    (tmp_path / "own.csv").write_text(rows.to_csv(index=False, sep=":"))
    again = load_site(plan, "south", str(tmp_path / "own.csv"), 2, separator=":", decimal=".")
    assert_equal_rows(again, federation, "south")


def test_several_columns_name_a_client(tmp_path):
    frame = FRAME.assign(floor=FRAME.ward)
    path = write(tmp_path / "all.csv", frame)
    plan = DataPlan.of({"features": ["age"], "label": "cost"})
    federation = fl.data.load(
        "file", path=path, client=["hospital", "floor"], label="cost", features=["age"], scale="none", seed=1
    )
    site = load_site(plan, "north / 10", path, 1, client=["hospital", "floor"])
    assert_equal_rows(site, federation, "north / 10")


def test_the_order_of_levels_and_labels_is_that_of_the_plan(tmp_path):
    path = write(tmp_path / "own.csv", FRAME)
    plan = DataPlan.of(
        {
            **COLUMNS["levels"], **TASKS["text"],
            "levels": {"ward": WARD, "soil": ["sand", "clay", "loam", "peat"]}, "labels": ["well", "ill"],
        }
    )  # fmt: skip
    site = load_site(plan, "north", path, 0)
    names = ("soil=sand", "soil=clay", "soil=loam", "soil=peat", "age", "ward=1", "ward=10", "ward=2")
    assert site.features == plan.feature_names == names
    assert (plan.inputs, plan.outputs, plan.classes) == (8, 2, ("well", "ill"))
    rows = site.train.row
    expected = np.array([[float(soil == name) for name in ("sand", "clay", "loam")] for soil in FRAME.soil])
    assert np.array_equal(site.train.x[:, :3].numpy(), expected[rows])
    assert not site.train.x[:, 3].any()
    assert [site.labels[number] for number in site.train.y] == FRAME.outcome[rows.tolist()].tolist()


# Errors.

SECRET, NUMBER = "Jane Doe", "987654321.25"
GOOD = {"age": "50.5", "soil": "clay", "day": "2020-05-01", "cost": "7.5", "outcome": "ill", "site": "north"}
PLANS = {
    "real": DataPlan.of({"label": "cost", "features": ["age"]}),
    "text": DataPlan.of({**TASKS["text"], "features": ["age"]}),
    "levels": DataPlan.of({"label": "cost", "features": ["soil"], "levels": {"soil": SOIL}}),
    "dates": DataPlan.of({"label": "cost", "features": ["day"], "dates": {"day": "2020-01-01"}}),
}


def build_lines(changes, header=True, separator=","):
    """Return a CSV file of eight rows, in which row 3 and row 6 have other cells."""
    rows = [{**GOOD, **(changes if number in (3, 6) else {})} for number in range(1, 9)]
    lines = [separator.join(row.values()) for row in rows]
    return "\n".join(([separator.join(GOOD)] if header else []) + lines) + "\n"


MARKED = {  # the plan, the cells of two rows, words of the error
    "text for a number": ("real", {"age": SECRET}, "'age': 2 of 8 cells are no numbers (the first in row 3)"),
    "text for a target": ("real", {"cost": SECRET}, "column 'cost': 2 of 8 cells are no finite numbers"),
    "an infinite target": ("real", {"cost": "-inf", "age": NUMBER}, "2 of 8 cells are no finite numbers"),
    "an infinite feature": ("real", {"age": "inf", "cost": NUMBER}, "column 'age': a value is infinite"),
    "a missing feature": ("real", {"age": "", "cost": NUMBER}, "column 'age': 2 of 8 cells are missing"),
    "a missing target": ("real", {"cost": "NA", "age": NUMBER}, "column 'cost': 2 of 8 cells are missing"),
    "an unknown label": ("text", {"outcome": SECRET}, "'outcome': 2 of 8 cells are not among the 2 labels"),
    "a number as a label": ("text", {"outcome": NUMBER}, "2 of 8 cells are not among the 2 labels"),
    "an unknown level": ("levels", {"soil": SECRET}, "'soil': 2 of 8 cells are not among the 3 levels"),
    "a number as a level": ("levels", {"soil": NUMBER}, "2 of 8 cells are not among the 3 levels"),
    "no date": ("dates", {"day": SECRET}, "column 'day': a date cannot be read"),
    "a number as a date": ("dates", {"day": NUMBER}, "column 'day': a date cannot be read"),
    "many fields": ("real", {"age": f'1,"{SECRET}",{NUMBER}'}, "Expected 6 fields in line 4, saw 8"),
    "lines in quotation": ("real", {"age": f'"{SECRET}'}, "1 of 5 cells are no numbers (the first in row 3)"),
    "decimal commas": ("real", {"age": f'"{NUMBER.replace(".", ",")}"'}, "2 of 8 cells are no numbers"),
}  # fmt: skip


def refuse(action):
    """Return the message of an InputError, which has one line and contains no marked cell."""
    with pytest.raises(fl.InputError) as caught:
        action()
    message = str(caught.value)
    parts = [SECRET, "Jane", "Doe", NUMBER, NUMBER.replace(".", ","), "987654321"]
    assert not [part for part in parts if part in message]
    assert "\n" not in message
    assert caught.value.__cause__ is None
    return message


@pytest.mark.parametrize("case", MARKED)
def test_errors_quote_no_cell(case, tmp_path):
    plan, changes, words = MARKED[case]
    path = write(tmp_path / "own.csv", build_lines(changes))
    assert words in refuse(lambda: load_site(PLANS[plan], "north", path, 0))
    marked = {key: SECRET if value == NUMBER else value for key, value in changes.items()}
    frame = pd.DataFrame(
        [{**GOOD, **(marked if row in (2, 5) else {})} for row in range(8)], index=[SECRET] * 8
    )
    frame = frame.assign(
        age=pd.to_numeric(frame.age, "coerce") if SECRET not in set(frame.age) else frame.age
    )
    if "," not in changes.get("age", "") and '"' not in changes.get("age", ""):
        frame.to_parquet(tmp_path / "own.parquet")
        refuse(lambda: load_site(PLANS[plan], "north", str(tmp_path / "own.parquet"), 0))


@pytest.mark.parametrize(
    "case", ["no header", "no client", "client missing", "twice", "quotation", "bytes", "damaged", "dates"]
)
def test_errors_about_files_quote_no_cell(case, tmp_path):
    plan, path, options, content = PLANS["real"], tmp_path / "own.csv", {}, build_lines({"soil": SECRET})
    words = ""
    if case == "no header":
        content = build_lines({}, header=False).replace("clay", SECRET, 1)
        words = "has no column 'cost' (and 1 more); add it"
    elif case == "no client":
        content, options = build_lines({"site": SECRET}), {"client": "site"}
        path.write_text(content)
        refuse(lambda: load_site(plan, "west", str(path), 0, **options))
        words, content = "has no rows of client 'north'", content.replace("north", SECRET)
    elif case == "client missing":
        content, options = build_lines({"site": "", "age": NUMBER}), {"client": "site"}
        words = "row 3, column 'site': the value is missing (2 in this column)"
    elif case == "twice":
        content = content.replace("soil", "age", 1)
        words = "column 'age' appears twice"
    elif case == "quotation":
        content = content.replace(SECRET, f'"{SECRET}', 1)
        words = "cannot be read (Error tokenizing data. C error: EOF inside string starting at row 3)"
    elif case == "bytes":
        content = content.encode().replace(b"Jane", b"\xff\xfe")
        words = "cannot be read (UnicodeDecodeError)"
    elif case == "damaged":
        path, content = tmp_path / "own.parquet", SECRET * 20
        words = "cannot be read"
    else:
        plan, content = PLANS["dates"], build_lines({"cost": NUMBER}).replace("2020-05-01", "05/06/2020")
        words = "may begin with the day or with the month"
    message = refuse(lambda: load_site(plan, "north", write(path, content), 0, **options))
    assert words in message


def test_a_client_without_complete_rows_is_refused(tmp_path):
    plan = DataPlan.of({"label": "cost", "features": ["age"], "missing": "drop"})
    path = write(tmp_path / "own.csv", "age,cost\n,1\n2,\n")
    assert "every row has a missing value" in refuse(lambda: load_site(plan, "north", path, 0))
    path = write(tmp_path / "own.csv", "age,cost\n")
    assert "has no rows of client 'north'" in refuse(lambda: load_site(plan, "north", path, 0))
    assert "unsupported extension '.npz'" in refuse(lambda: load_site(plan, "north", "own.npz", 0))
    assert "as label or feature" in refuse(lambda: load_site(plan, "north", path, 0, client="age"))


# Shapes.


def test_shapes_are_counts_alone(tmp_path):
    plan = DataPlan.of({**COLUMNS["levels"], **TASKS["text"]})
    shapes = describe_site(load_site(plan, "north", write(tmp_path / "own.csv", FRAME), 0))
    assert shapes == {"train_rows": 112, "test_rows": 38, "inputs": 7, "outputs": 2}
    assert check_shapes(plan, json.loads(json.dumps(shapes))) == shapes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_rows": 0}, "train_rows of a client's data is no valid count"),
        ({"train_rows": True}, "train_rows"),
        ({"test_rows": -1}, "test_rows"),
        ({"test_rows": 1.5}, "test_rows"),
        ({"train_rows": 2**60}, "train_rows"),
        ({"inputs": 8}, "has 8 inputs; expected 7, as in the plan"),
        ({"outputs": 3}, "has 3 outputs; expected 2"),
        ({"rows": [1]}, "shapes of a client's data are incomplete"),
    ],
)
def test_wrong_shapes_are_refused(changes, words):
    plan = DataPlan.of({**COLUMNS["levels"], **TASKS["text"]})
    shapes = {"train_rows": 9, "test_rows": 0, "inputs": 7, "outputs": 2, **changes}
    with pytest.raises(fl.InputError, match=re.escape(words)):
        check_shapes(plan, shapes)
