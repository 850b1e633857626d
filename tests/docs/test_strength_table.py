"""The table of default and automatic strengths on the page is the one that the benchmark measured."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = {  # of the rows on the page, by those of the benchmark
    "radon": "radon,",
    "colorado": "Colorado,",
    "har": "Human Activity, scarce",
    "har-sampled": "the same, a tenth",
    "digits": "digits",
    "synthetic": "synthetic",
}


def read_rows(text):
    """Return the cells of each row of the first table in a text, without its header."""
    lines = re.findall(r"^\| (.+) \|$", text, re.M)
    return [line.split(" | ") for line in lines[2:]]


def read_page():
    text = (ROOT / "docs" / "howto" / "strength.md").read_text("utf-8")
    return text.partition("## How good are")[2].partition("## What")[0]


def read_results():
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8")
    section = re.search(r"<!-- strengths -->(.*?)<!-- /strengths -->", text, re.S)
    return {row[0]: row[1:] for row in read_rows(section[1])}


def test_the_page_has_the_numbers_of_the_benchmark():
    rows = {row[0]: row[1:] for row in read_rows(read_page())}
    results = read_results()
    assert set(results) == set(NAMES)
    assert len(rows) == len(NAMES)
    for name, (_, default, best, _, auto, *_) in results.items():
        (row,) = [cells for label, cells in rows.items() if label.startswith(NAMES[name])]
        assert row == [default, auto, best]


def test_the_page_has_the_time_of_the_choice():
    (found,) = re.findall(r"took ([\d.]+) to ([\d.]+) times", read_page())
    ratios = [float(row[-1]) for row in read_results().values()]
    assert [float(number) for number in found] == [min(ratios), max(ratios)]


def test_most_choices_are_within_a_standard_error_of_the_best():
    behind = [float(row[-3]) for row in read_results().values()]
    assert sum(number <= 1 for number in behind) > len(behind) / 2


def test_the_default_is_behind_with_sampled_people_only():
    assert "it is five standard errors behind" in read_page()
    behind = {name: float(row[-2]) for name, row in read_results().items()}
    assert round(behind.pop("har-sampled")) == 5
    assert max(behind.values()) < 1.5
