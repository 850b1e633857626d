"""Golden digests: they see every bit of a result, and neither times nor names."""

import importlib.util
import json
import math
import sys
from collections import namedtuple
from dataclasses import asdict, dataclass, make_dataclass, replace
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "golden.py"


@pytest.fixture(scope="module")
def golden():
    spec = importlib.util.spec_from_file_location("golden", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["golden"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["golden"]


@pytest.fixture(scope="module")
def fit_stack(golden):
    return golden.load_adapter(SCRIPT.with_name("golden_stacks.py"))


@pytest.fixture(scope="module")
def result(golden, fit_stack):
    return golden.Case("scaffold").train(fit_stack)[0]


def test_digests_ignore_times(golden, result):
    slower = [replace(score, seconds=score.seconds + 1) for score in result.scores]
    assert golden.digest_scores(slower) == golden.digest_scores(result.scores)


def test_digests_ignore_names_of_fields(golden, result):
    for known in (0, 14):  # The time, last, is known by its place if its name is unknown too.
        names = [
            name if place < known else f"renamed_{place}"
            for place, name in enumerate(asdict(result.scores[0]))
        ]
        renamed = make_dataclass("Renamed", names)
        scores = [renamed(*asdict(score).values()) for score in result.scores]
        assert golden.digest_scores(scores) == golden.digest_scores(result.scores)
        assert golden.count_bytes(scores[-1]) == [result.scores[-1].bytes_up, result.scores[-1].bytes_down]

    @dataclass
    class Table:
        rows: torch.Tensor

    a, b, c = torch.ones(2, 3), torch.zeros(4), torch.arange(3)
    regrouped = namedtuple("State", "models rest")(Table(a), {"c": c, "nothing": None, "b": b})
    assert golden.digest_state(regrouped) == golden.digest_state(((a, c), None, b))
    assert golden.digest_state((a, b, c)) != golden.digest_state((a, c, b))


def test_digests_see_every_bit(golden, result):
    digest = golden.digest_state(result.models)
    assert golden.digest_state(result.models.clone()) == digest
    changed = result.models.clone()
    changed.view(torch.int32)[2, 3] ^= 1
    assert golden.digest_state(changed) != digest
    assert golden.digest_state(result.models.double()) != digest
    assert golden.digest_state(result.models.flatten()) != digest
    assert golden.digest_state(torch.zeros(2)) != golden.digest_state(-torch.zeros(2))
    last = result.scores[-1]
    for other in (
        replace(last, loss=math.nextafter(last.loss, 9)),
        replace(last, bytes_up=last.bytes_up + 1),
    ):
        assert golden.digest_scores([other]) != golden.digest_scores([last])


def test_unknown_states_are_refused(golden):
    with pytest.raises(TypeError, match="cannot digest object"):
        golden.digest_state((torch.ones(2), object()))


def test_cases_repeat(golden, fit_stack):
    cases = [golden.Case("fedu", share="half"), golden.Case("mocha", work="epochs", stacked=True)]
    first, second = (golden.digest_cases(cases, fit_stack)[0] for _ in range(2))
    assert first == second
    assert len({str(digest) for digest in first.values()}) == len(cases)


def test_every_case_has_its_own_name(golden):
    for device in ("cpu", "cuda"):
        cases = golden.list_cases(device)
        assert len({case.name for case in cases}) == len(cases)
        assert {case.method for case in cases} == set(golden.METHODS)


def test_the_table_of_methods_is_complete(golden):
    from laws import METHODS

    assert list(golden.METHODS) == list(METHODS)
    assert [m.sampled for m in golden.METHODS.values()] == [m.sampled for m in METHODS.values()]


def test_compare_reports_differences(golden, tmp_path, capsys):
    def compare(**changes):
        digests = {"one": {"models": "a", "scores": "b"}, "two": {"models": "c", "scores": "d"}}
        files = []
        for place, change in enumerate(({}, changes)):
            content = {"environment": {"torch": "2"}, "digests": digests, "not repeatable": []}
            files.append(tmp_path / f"{place}.json")
            files[-1].write_text(json.dumps({**content, **change}))
        return golden.main(["compare", *map(str, files)]), capsys.readouterr()

    code, output = compare()
    assert code == 0
    assert output.out.startswith("4 digests compared: 0 cases")
    other = {"one": {"models": "a", "scores": "b"}, "two": {"models": "c", "scores": "e"}}
    code, output = compare(digests=other)
    assert code == 1
    assert "two: different scores\n" in output.out
    code, output = compare(digests={"two": {"models": "c", "scores": "d"}})
    assert code == 1
    assert "one: missing from the second file\n" in output.out
    code, output = compare(**{"digests": other, "not repeatable": ["two"]})
    assert code == 0
    assert "1 cases are not repeatable" in output.out
    code, output = compare(digests={**other, "new/linear": {"models": "f"}})
    assert "new/linear: missing from the first file\n" in output.out
    code, output = compare(environment={"torch": "3"})
    assert code == 0
    assert "torch is '2' in the first file and '3' in the second" in output.err


def test_methods_that_an_earlier_version_lacks_are_counted(golden, tmp_path, capsys, monkeypatch):
    """A method that the later version lost remains a difference."""
    lacking = golden.Method(lambda graph, factor, **work: golden.fl.MethodOfALaterVersion())
    monkeypatch.setitem(golden.METHODS, "fedamp", lacking)
    assert golden.find_unknown_methods() == ["fedamp"]
    assert "fedamp" not in {case.method for case in golden.list_cases()}
    earlier, later = tmp_path / "earlier.json", tmp_path / "later.json"
    old, new = {"fedavg/linear": {"models": "a"}}, {"fedamp/linear": {"models": "b"}}
    content = {"environment": {}, "digests": old, "unknown methods": ["fedamp"]}
    earlier.write_text(json.dumps(content))
    later.write_text(json.dumps({"environment": {}, "digests": {**old, **new}, "unknown methods": []}))
    assert golden.main(["compare", str(earlier), str(later)]) == 0
    assert "1 digests compared: 0 cases differ or are missing" in (output := capsys.readouterr().out)
    assert "1 cases of new methods" in output
    assert golden.main(["compare", str(later), str(earlier)]) == 1
    assert "fedamp/linear: missing from the second file" in capsys.readouterr().out


def test_a_wrong_source_is_refused(golden, tmp_path):
    with pytest.raises(SystemExit, match=r"fedlap was imported from .*; set PYTHONPATH="):
        golden.main(["part", str(tmp_path / "g.json"), "--mode", "kernel", "--source", str(tmp_path)])
