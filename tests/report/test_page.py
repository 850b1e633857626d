"""The page as HTML: nothing is lost, everything is escaped, nothing is fetched."""

import json
import math
import re
from html.parser import HTMLParser

import pytest

from fedlap.report.page import CurveSeries, Page, Panel, TableCell, TableSection, TextSection, render_html
from fedlap.report.page.axis import format_measured
from fedlap.report.page.sections import BarsSection, FigureSection, GraphSection, HeatmapSection
from pages import NASTY, PAGE, TABLE

VOID = {"meta", "link", "br"}


class Read(HTMLParser):
    """Elements and their texts; every element must end where it may."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.seen, self.text = [], [], {}

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        assert len(dict(attributes)) == len(attributes), f"an attribute of {tag} is given twice"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert self.open.count("svg"), f"<{tag}/> outside a picture"
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)


def read(text):
    parser = Read()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def page():
    return read(render_html(PAGE, with_files=True))


def test_elements_are_nested_and_ids_differ(page):
    ids = [attributes["id"] for _, attributes in page.seen if "id" in attributes]
    assert len(ids) == len(set(ids)) > 10
    for tag, attributes in page.seen:
        target = attributes.get("href", "")
        if target.startswith("#"):
            assert target[1:] in ids
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids, tag


def test_nothing_is_fetched(page):
    text = render_html(PAGE, with_files=True)
    assert "://" not in text
    assert not re.search(r"@import|url\(", text)
    assert not [tag for tag, attributes in page.seen if "src" in attributes or tag in ("img", "iframe")]
    links = [attributes["href"] for tag, attributes in page.seen if tag == "link"]
    assert links == ["data:,"]
    policy = next(a["content"] for tag, a in page.seen if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_all_text_is_escaped(page):
    # Tags that a text tries to smuggle in would be elements or attributes.
    names = {name for _, attributes in page.seen for name in attributes}
    assert not [name for name in names if name.startswith("on")]
    assert [tag for tag, _ in page.seen].count("script") == 1 + len(_panels())  # numbers of each panel
    assert NASTY in "".join(page.text["h1"])
    assert any(NASTY in text for text in page.text["th"])
    assert any(NASTY in (attributes.get("data-name") or "") for _, attributes in page.seen)


def test_numbers_for_the_script_are_json(page):
    found = [json.loads(text) for text in page.text["script"] if text.startswith("{")]
    assert len(found) == len(_panels())
    for data, panel in zip(found, _panels(), strict=True):
        for entry, series in zip(data["series"], panel.series, strict=True):
            assert entry["name"] == series.name
            assert entry["x"] == series.x
            assert entry["mean"] == [value if math.isfinite(value) else None for value in series.mean]
            assert (entry["low"], entry["high"]) == (series.low, series.high)


def _panels():
    return [
        panel for section in PAGE.sections if isinstance(section, FigureSection) for panel in section.panels
    ]


def test_headers_have_a_scope_and_pictures_a_text(page):
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in page.seen if tag == "th")
    pictures = [attributes for tag, attributes in page.seen if tag == "svg"]
    assert all(a.get("aria-label") or a.get("aria-hidden") == "true" for a in pictures)
    buttons = [attributes for tag, attributes in page.seen if tag == "button"]
    assert buttons
    assert all(a["aria-pressed"] == "true" for a in buttons)


def test_every_bar_and_cell_says_its_number(page):
    titles = page.text["title"]
    bars = next(section for section in PAGE.sections if isinstance(section, BarsSection))
    for _, values in bars.series:
        for label, value in zip(bars.labels, values, strict=True):
            assert (f"{label}: {format_measured(value)} {bars.unit}" in titles) == math.isfinite(value)
    heat = next(section for section in PAGE.sections if isinstance(section, HeatmapSection))
    for row, line in zip(heat.rows, heat.values, strict=True):
        for column, value in zip(heat.columns, line, strict=True):
            assert f"{row}, {column}: {format_measured(value)}" in titles


def test_every_client_of_a_map_and_a_forest_plot_says_its_number(page):
    titles = page.text["title"]
    assert f"{NASTY}: 1.5 points" in titles
    assert "south: −0.5 points" in titles
    assert "east: no value" in titles
    assert f"{NASTY}: 1 (0.5 to 1.5) per year" in titles
    assert "south: 2 " in titles  # without an interval
    assert f"{NASTY}: 1, 1.25" in titles


def test_best_is_marked_and_muted_is_grey(page):
    best = sum(cell.best for row in TABLE.rows for cell in row)
    assert "".join(page.text["strong"]).count("97.92") == 1
    assert [a.get("aria-label") for tag, a in page.seen if tag == "span"] == ["best"] * best
    assert sum(a.get("class") == "muted" for _, a in page.seen) == sum(c.muted for r in TABLE.rows for c in r)


def test_files_are_named_only_where_they_are():
    assert "Files:" not in render_html(PAGE)
    assert render_html(PAGE, with_files=True).count("Files:") == 8


def test_groups_have_one_heading_and_one_line_of_contents():
    tables = [TableSection(f"T{n}", "", f"t{n}", ["a"], [[TableCell("1")]], group="Both") for n in (1, 2)]
    text = render_html(Page("p", "", [*tables, TextSection("x", []), TextSection("y", ["z"])], ""))
    assert text.count(">Both<") == 2  # the heading and the line
    assert "<h3" in text
    assert "To make it again" not in text


def test_empty_sections_are_pages_too():
    nothing = Page(
        "nothing",
        "",
        [
            TableSection("t", "", "t", ["a", "b"], []),
            FigureSection("f", "", "f", []),
            FigureSection(
                "g", "", "g", [Panel("p", "x", "y", [CurveSeries("s", [], [])], log_x=True, log_y=True)]
            ),
            BarsSection("b", "", "b", [], [], "u"),
            BarsSection("c", "", "c", ["one"], [("m", [math.nan])], "u"),
            HeatmapSection("h", "", "h", [], [], []),
            GraphSection("d", "", "d", [], []),
            GraphSection("e", "", "e", [("one", 1.0, 2.0, 0)], []),
        ],
        "",
    )
    read(render_html(nothing))
