"""References as BibTeX: a small parser reads what `fedlap cite` prints."""

import json
import re
from pathlib import Path

import pytest

import fedlap as fl
from fedlap.cli.bibtex import format_bibtex
from fedlap.data import SOURCES

ENTRY = re.compile(r"@(\w+)\{([a-z0-9]+),\n((?:  \w+ = \{.*\},\n)+)\}\n*")
NEEDED = {  # fields that BibTeX's standard styles ask for
    "article": {"author", "title", "journal", "year"},
    "book": {"author", "title", "publisher", "year"},
    "inproceedings": {"author", "title", "booktitle", "year"},
    "misc": {"title"},
    "techreport": {"author", "title", "institution", "year"},
}


def parse_bibtex(text):
    """Return fields by key; raise AssertionError for text that is not BibTeX."""
    entries, at = {}, 0
    while at < len(text):
        found = ENTRY.match(text, at)
        assert found, text[at:]
        kind, key, body = found.groups()
        fields = dict(re.findall(r"  (\w+) = \{(.*)\},\n", body))
        assert key not in entries
        assert NEEDED[kind] <= set(fields), key
        for value in fields.values():
            plain = re.sub(r"\\[{}]", "", value)
            assert plain.count("{") == plain.count("}")
            assert not re.search(r"(?<!\\)[&%$#_]", value)
        entries[key], at = {"kind": kind, **fields}, found.end()
    return entries


def test_cite_alone_names_fedlap_and_its_paper(call):
    code, out, _ = call("cite", out=False)
    entries = parse_bibtex(out)
    assert code == 0
    assert list(entries) == ["fedlap", "dinh2022new"]
    assert fl.__version__ in entries["fedlap"]["note"]
    assert entries["dinh2022new"]["author"].startswith("Dinh, C. T. and Vu, T. T. and ")


def test_methods_and_data_sets_are_named(call):
    _, out, _ = call("cite", "fedu", "mocha", "--data", "radon", out=False)
    entries = parse_bibtex(out)
    assert list(entries) == [
        "fedlap",
        "dinh2022new",
        "smith2017federated",
        "price1996bayesian",
        "gelman2007data",
    ]
    assert call("cite", "fedu", "radon", "mocha", out=False)[1] == out
    assert "unknown algorithm, data set or run 'radom'; did you mean 'radon'" in call("cite", "radom")[2]
    assert entries["price1996bayesian"]["journal"] == "Health Physics"
    assert (entries["price1996bayesian"]["volume"], entries["price1996bayesian"]["number"]) == ("71", "6")
    assert entries["smith2017federated"]["author"].split(" and ")[1] == "Chiang, C.-K."


def test_every_reference_of_the_library_becomes_entries(call):
    """No reference is written in a way that only fits into a note."""
    known = ",".join(name for name, source in SOURCES.items() if source.citation)
    _, out, _ = call("cite", "--algorithms", "all", "--data", known, out=False)
    entries = parse_bibtex(out)
    texts = {method.citation for method in fl.ALGORITHMS.values()} | {s.citation for s in SOURCES.values()}
    years = sum(len(re.findall(r"\b(?:19|20)\d\d\.(?!\d)", text)) for text in texts)
    assert len(entries) == 1 + years
    assert all("author" in entry for key, entry in entries.items() if key != "fedlap")


def test_plain_text_has_the_references_as_they_are_written(call):
    _, out, _ = call("cite", "fedprox", "--data", "digits", "--text", out=False)
    assert out.splitlines() == [fl.FedU.citation, fl.FedProx.citation, SOURCES["digits"].citation]


def test_a_run_is_cited_by_its_folder_its_name_and_its_digits(call):
    words = ("--data", "digits", "--algorithm", "fedprox", "--rounds", "1", "--json")
    folder = json.loads(call("run", *words)[1])["folder"]
    name = Path(folder).name
    for word in (folder, name, name.rpartition("-")[2][:8]):
        code, out, err = call("cite", word)
        assert code == 0, err
        entries = parse_bibtex(out)
        assert list(entries) == ["fedlap", "dinh2022new", "li2020federated", "alpaydin1998optical"]


@pytest.mark.parametrize("text", ["my own notes", "Someone, 100 % sure & done"])
def test_other_text_becomes_a_note(text):
    (entry,) = format_bibtex(text)
    assert entry.startswith("@misc{")
    assert text.replace("%", "\\%").replace("&", "\\&") in entry
