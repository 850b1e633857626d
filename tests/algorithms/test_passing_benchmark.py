"""The benchmark of passed steps: committed scores give its tables again, and its tables hide nothing."""

import json

import pytest
from benchmarks import passing
from benchmarks.passing_methods import METHODS

import fedlap as fl
from fedlap.report.paired_tests import compare_paired

CASES = passing.list_cases()
SEEDS = list(range(10, 20))


@pytest.fixture(scope="module")
def lines():
    return passing.read_ledger(passing.LEDGER)


def line(score, metric="accuracy", ends=(), **values):
    return {"metric": metric, "score": score, "values": values, "ends": list(ends)}


def read_rows(kind):
    """Return the rows of a section of RESULTS.md."""
    text = passing.LEDGER.with_name("RESULTS.md").read_text("utf-8")
    section = text.split(f"<!-- {kind} -->")[1].split(f"<!-- /{kind} -->")[0]
    table = [part for part in section.splitlines() if part.startswith("| ")]
    return [[cell.strip() for cell in part.strip("|").split("|")] for part in table[2:]]


def test_committed_scores_give_the_tables_of_results(lines):
    tables = passing.build_tables(CASES, SEEDS, lines)
    assert {"clusters", "ring"} <= tables.keys()
    for case, rows in tables.items():
        assert read_rows(f"{passing.KIND}: {case}") == rows


def test_committed_scores_are_of_the_seeds_that_did_not_design_the_method(lines):
    assert {seed for *_, seed in lines} == set(SEEDS)


def test_a_changed_score_changes_its_test_and_the_corrected_values_of_others(lines):
    changed = json.loads(json.dumps(lines["clusters", "fedu", 10]))
    changed["score"] += 5.0
    before = passing.build_tables(CASES, SEEDS, lines)["clusters"]
    after = passing.build_tables(CASES, SEEDS, {**lines, ("clusters", "fedu", 10): changed})["clusters"]
    (row,) = [place for place, cells in enumerate(before) if cells[0] == "fedu"]
    assert before[row] != after[row]
    assert before[row + 1][:2] == after[row + 1][:2]


def test_differences_to_fedu_are_also_corrected_among_themselves(lines):
    """Fewer differences have a weaker correction; one alone has none."""
    for rows in passing.build_tables(CASES, SEEDS, lines).values():
        cells = {row[0]: row[3] for row in rows}
        difference, p = cells[passing.CLAIM].split(", p = ")
        assert cells["fedu"].startswith(f"{difference}, ")
        assert float(p) <= float(cells["fedu"].split(", p = ")[1])
    alone = {key: entry for key, entry in lines.items() if key[0] == "ring" and "fedu" in key[1]}
    (row,) = [row for row in passing.build_tables(CASES, SEEDS, alone)["ring"] if row[0] == passing.CLAIM]
    scores = [[alone["ring", name, seed]["score"] for seed in SEEDS] for name in ("fedu-passing", "fedu")]
    assert row[3].endswith(f"p = {compare_paired(*scores).p_value:.2g}")


def test_methods_that_were_not_run_are_rows():
    lines = {("ring", "fedu-passing", seed): line(80.0 + seed, lr=0.1) for seed in range(2)}
    rows = passing.build_tables({"ring": CASES["ring"]}, range(2), lines)["ring"]
    assert [cells[0] for cells in rows] == passing.list_names(CASES["ring"])
    assert rows[0] == ["fedu-passing", "80.500 ± 0.500", "2", "", "lr 0.1"]
    assert all(cells[1:] == [passing.NOT_RUN, "0", "", ""] for cells in rows[1:])


def test_both_methods_are_compared_on_the_shuffled_graph():
    names = {"fedu-passing": 80.0, "fedu-passing (shuffled)": 70.0, "fedu (shuffled)": 71.0}
    lines = {
        ("ring", name, seed): line(score + 0.1 * seed * (name == "fedu (shuffled)"))
        for seed in range(3)
        for name, score in names.items()
    }
    found = {row: pair.mean for _, row, pair in passing.list_differences(CASES, range(3), lines)}
    assert found[passing.SHUFFLED_PAIR] == pytest.approx(-1.1)
    assert found["fedu (shuffled)"] == pytest.approx(8.9)


def test_values_at_an_end_are_marked():
    tried = {"lr": [0.1, 0.01, 1.0], "proximal": [0.1, 0.3, 1.0], "models": [5]}
    chosen = {"lr": 0.01, "proximal": 0.3, "models": 5}
    assert passing.list_ends(chosen, tried) == ["lr"]
    assert (
        passing.describe_settings(line(1.0, ends=["lr"], lr=0.01, proximal=0.3)) == "lr 0.01*, proximal 0.3"
    )


def test_stored_ends_are_those_of_the_values_that_were_tried(lines):
    """Strengths in units of 1/ρ need the graph, so the complete graph's cases are checked: ρ is N."""
    for (case, name, _), entry in lines.items():
        method = METHODS[name.removesuffix(passing.SHUFFLED)]
        if case.startswith("har") or not method.coupled:
            assert entry["ends"] == passing.list_ends(entry["values"], method.list_values(30.0))


def test_every_method_with_a_server_is_in_every_case_that_it_can_train():
    known = {name for name, kind in fl.ALGORITHMS.items() if hasattr(kind, "send")} - {"global"}
    for name, case in CASES.items():
        wanted = known - ({"mocha"} if "mlp" in name else {"fedper", "fedrep"})
        assert {row.removesuffix("-fine-tuned") for row in case.methods} == wanted
