"""Names that benchmarks get on the command line."""

import sys

import pytest
from benchmarks import method_costs, passing


def run_passing():
    return passing.run_command(passing.list_cases(), "passing", "benchmarks.passing", passing.LEDGER, None)


@pytest.mark.parametrize(
    ("command", "words", "suggested"),
    [
        (run_passing, ["--only", "har-linear-stepz"], "har-linear-steps"),
        (run_passing, ["--only", "ring", "--methods", "fedu-pasing"], "fedu-passing"),
        (method_costs.main, ["--only", "local,ditt"], "ditto"),
    ],
    ids=["case", "method of a case", "method"],
)
def test_unknown_names_are_one_line(command, words, suggested, tmp_path, monkeypatch, capsys):
    results = tmp_path / "RESULTS.md"
    ledger = ["--ledger", str(tmp_path / "ledger")] if command is run_passing else []
    monkeypatch.setattr(sys, "argv", ["benchmark", *words, *ledger, "--results", str(results)])
    with pytest.raises(SystemExit) as stop:
        command()
    message = capsys.readouterr().err
    assert stop.value.code == 2
    assert message.count("\n") == 1
    assert f"did you mean {suggested!r}" in message
    assert "fedu" in message or "clusters" in message  # the known names
    assert not results.exists()
