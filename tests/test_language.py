"""Names and sentences follow the rules of wording that a program can check."""

import pytest

from language import ROOT, SRC, check_file, check_page, check_text, find_duplicates

# Tests, benchmarks, examples and the gallery follow the rules on docstrings, names and comments, without
# exceptions. The rule on strings holds for the package only (see `check_file`): strings in tests are inputs
# and expected outputs.
FOLDERS = (SRC, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples", ROOT / "docs" / "gallery")
FILES = sorted(file for folder in FOLDERS for file in folder.rglob("*.py"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(page for kind in ("*.md", "*.ipynb") for page in sorted((ROOT / "docs").rglob(kind))),
]


def test_sources_use_the_words_of_the_field():
    found = {str(file.relative_to(ROOT)): check_file(file) for file in FILES}
    assert {name: places for name, places in found.items() if places} == {}


def test_pages_use_the_words_of_the_field():
    found = {str(page.relative_to(ROOT)): check_file(page) for page in PAGES}
    assert {name: places for name, places in found.items() if places} == {}
    assert len(PAGES) > 50


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ("# Runs\n\nA run goes on.\n", 3),
        ("```\nfedlap runs  # kept\n```\nOne run beside another\n", 4),
        ("- a list\n- what was\n  told\n", 3),
    ],
)
def test_rules_for_pages_can_fail(page, line):
    assert [place for place, _ in check_page(page)] == [line]


def test_code_on_pages_is_free():
    page = "The column `kept`.\n\n    runs are kept\n\n```toml\nlaid = 1\n```\n[text](made.md) of these\n"
    assert check_page(page) == []


def test_one_name_has_one_meaning():
    assert find_duplicates() == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('"""What is kept."""', "docstring begins with 'What'"),
        ('"""Rows that are kept."""', "docstring says 'kept'"),
        ("def drawn(): ...", "function 'drawn' is a participle"),
        ("def _checked(): ...", "function '_checked' is a participle"),
        ("made = 1", "name 'made' says nothing"),
        ("def f(told): ...", "name 'told' says nothing"),
        ('raise ValueError(f"{1} runs go on")', "text says 'go on'"),
        ("x = 1  # of these", "comment says 'of these'"),
    ],
)
def test_every_rule_can_fail(text, complaint):
    assert any(complaint in found for _, found in check_text(text))


@pytest.mark.parametrize(
    "text",
    [
        '"""Return the seed."""',
        "def seed(): ...",
        "@property\ndef scaled(): ...",
        "def read_rows(): ...",
        "x = 'made'",
    ],
)
def test_good_names_pass(text):
    assert check_text(text) == []


def test_strings_of_tests_are_free():
    text = 'expected = "runs go on"'
    assert check_text(text)
    assert check_text(text, strings=False) == []
