"""The data of a plan: it survives JSON and TOML, and every wrong value is refused with its name."""

import json
import tomllib

import pytest

import fedlap as fl
from fedlap.deploy.data_plan import DataPlan

REAL = {"label": "cost", "features": ["age", "soil", "day"]}
FULL = {
    **REAL, "task": "classification", "labels": ["ill", "well"], "levels": {"soil": ["clay", "sand"]},
    "dates": {"day": "2020-01-31"}, "missing": "drop", "scale": "client", "test_share": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("values", [REAL, FULL], ids=["defaults", "all settings"])
def test_a_plan_is_plain_values(values):
    plan = DataPlan.of(values)
    assert DataPlan.of(json.loads(json.dumps(plan.to_dict()))) == plan
    assert plan.to_dict() == {**DataPlan.of(REAL).to_dict(), **values}


def test_a_plan_is_a_table_of_toml():
    plan = DataPlan.of(
        tomllib.loads(
            """
            label = "grade"
            features = ["soil", "day", "age"]
            task = "classification"
            labels = [1, 2, true]
            levels = { soil = ["clay", 10] }
            dates = { day = 2020-01-31 }
            """
        )
    )
    assert plan.classes == ("1", "2", "True")
    assert plan.feature_names == ("soil=clay", "soil=10", "day", "age")
    assert (plan.inputs, plan.outputs) == (4, 3)
    assert plan.encoding.columns[1].origin == 18_292  # days from 1970-01-01 to 2020-01-31
    assert [column.kind for column in plan.columns] == ["levels", "date", "number"]


WRONG = [
    ({"lable": "cost"}, "lable", "did you mean 'label' or 'labels'?"),
    ({"label": ""}, "label", "expected the name of a column"),
    ({"label": 3}, "label", "expected the name of a column"),
    ({"label": "age"}, "features", "'age' is the label and a feature"),
    ({"features": []}, "features", "name at least one column"),
    ({"features": "age"}, "features", "expected a list of names"),
    ({"features": ["age", 2.5]}, "features", "expected a text"),
    ({"features": ["age", ""]}, "features", "a name is empty"),
    ({"features": ["age", "soil", "day", "age"]}, "features", "'age' appears twice"),
    ({"features": ["soil", "day", "soil=clay"]}, "features", "two features have the name 'soil=clay'"),
    ({"task": "clasification"}, "task", "did you mean 'classification'?"),
    ({"task": "regression"}, "labels", "remove labels, or set task"),
    ({"labels": ["ill"]}, "labels", "with 1 labels; list at least two"),
    ({"labels": ["ill", "ill"]}, "labels", "'ill' appears twice"),
    ({"levels": ["soil"]}, "levels", "expected a table"),
    ({"levels": {"soil": "clay"}}, "levels", "expected a list of names"),
    ({"levels": {"sole": ["clay"]}}, "levels", "did you mean 'soil'?"),
    ({"levels": {"soil": []}}, "levels", "has 0 levels; expected 1 to 1,000"),
    ({"levels": {"soil": [*range(1001)]}}, "levels", "has 1001 levels"),
    ({"levels": {"soil": ["clay "]}}, "levels", "without spaces"),
    ({"levels": {"soil": ["NA"]}}, "levels", "a missing value"),
    ({"levels": {"soil": ["a"], "day": ["b"]}}, "dates", "has levels and dates"),
    ({"dates": {"days": "2020-01-31"}}, "dates", "did you mean 'day'?"),
    ({"dates": {"day": "31.01.2020"}}, "dates", "expected a date such as 2020-01-31"),
    ({"missing": "mean"}, "missing", "known: drop, refuse"),
    ({"scale": "pool"}, "scale", "did you mean 'pooled'?"),
    ({"test_share": 1}, "test_share", "expected a number in [0, 1)"),
    ({"test_share": -0.5}, "test_share", "of at least zero"),
    ({"test_share": "half"}, "test_share", "expected a finite number"),
]


@pytest.mark.parametrize(("changes", "field", "words"), WRONG)
def test_wrong_values_are_refused_by_name(changes, field, words):
    with pytest.raises(fl.InputError) as caught:
        DataPlan.of({**FULL, **changes})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.field == f"data.{field}"


@pytest.mark.parametrize("name", ["label", "features"])
def test_a_plan_needs_columns(name):
    with pytest.raises(fl.InputError, match=f"{name} is missing; the plan needs it in \\[data\\]"):
        DataPlan.of({key: value for key, value in FULL.items() if key != name})
    with pytest.raises(fl.InputError, match="expected a table"):
        DataPlan.of([])
