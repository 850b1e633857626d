"""The page and the other forms of its tables and figures: exact answers, nothing lost, nothing fetched."""

import csv
import io
import json
import math
import re
from html.parser import HTMLParser

import pytest

from fedlap.errors import InputError
from fedlap.report.page import (
    Cell,
    Page,
    Panel,
    Series,
    TableSection,
    TextSection,
    html,
    latex,
    markdown,
    write,
)
from fedlap.report.page import comma_separated as as_csv
from fedlap.report.page.colours import DARK, LIGHT, MARKS, MATPLOTLIB_MARKS, places
from fedlap.report.page.scale import Scale, linear_ticks, log_ticks, short, tick_text
from fedlap.report.page.sections import BarsSection, DrawingSection, FigureSection, HeatSection
from fedlap.report.page.shapes import counted, fitted, ordered
from fedlap.report.page.svg import curves
from pages import NASTY, PAGE

VOID = {"meta", "link", "br"}
TABLE = next(section for section in PAGE.sections if isinstance(section, TableSection))


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
    made = Read()
    made.feed(text)
    made.close()
    assert made.open == []
    return made


@pytest.fixture(scope="module")
def page():
    return read(html(PAGE, beside=True))


# ---------------------------------------------------------------------------------------------- HTML


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
    text = html(PAGE, beside=True)
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
        for given, series in zip(data["series"], panel.series, strict=True):
            assert given["name"] == series.name
            assert given["x"] == series.x
            assert given["mean"] == [value if math.isfinite(value) else None for value in series.mean]
            assert (given["low"], given["high"]) == (series.low, series.high)


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


@pytest.mark.parametrize(
    "form", [lambda t: html(PAGE), markdown, as_csv, latex], ids=["html", "md", "csv", "tex"]
)
def test_every_number_of_a_table_is_there(form):
    text = form(TABLE)
    for row in TABLE.rows:
        for cell in row:
            for number in re.findall(r"\d+\.\d+", f"{cell.text} {cell.note}"):
                assert number in text


def test_every_bar_and_cell_says_its_number(page):
    titles = page.text["title"]
    bars = next(section for section in PAGE.sections if isinstance(section, BarsSection))
    for _, values in bars.series:
        for label, value in zip(bars.labels, values, strict=True):
            assert (f"{label}: {short(value)} {bars.unit}" in titles) == math.isfinite(value)
    heat = next(section for section in PAGE.sections if isinstance(section, HeatSection))
    for row, line in zip(heat.rows, heat.values, strict=True):
        for column, value in zip(heat.columns, line, strict=True):
            assert f"{row}, {column}: {short(value)}" in titles


def test_best_is_marked_and_muted_is_grey(page):
    best = sum(cell.best for row in TABLE.rows for cell in row)
    assert "".join(page.text["strong"]).count("97.92") == 1
    assert [a.get("aria-label") for tag, a in page.seen if tag == "span"] == ["best"] * best
    assert sum(a.get("class") == "muted" for _, a in page.seen) == sum(c.muted for r in TABLE.rows for c in r)


def test_files_are_named_only_where_they_are():
    assert "Files:" not in html(PAGE)
    assert html(PAGE, beside=True).count("Files:") == 5


def test_groups_have_one_heading_and_one_line_of_contents():
    tables = [TableSection(f"T{n}", "", f"t{n}", ["a"], [[Cell("1")]], group="Both") for n in (1, 2)]
    text = html(Page("p", "", [*tables, TextSection("x", []), TextSection("y", ["z"])], ""))
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
                "g", "", "g", [Panel("p", "x", "y", [Series("s", [], [])], log_x=True, log_y=True)]
            ),
            BarsSection("b", "", "b", [], [], "u"),
            BarsSection("c", "", "c", ["one"], [("m", [math.nan])], "u"),
            HeatSection("h", "", "h", [], [], []),
            DrawingSection("d", "", "d", [], []),
            DrawingSection("e", "", "e", [("one", 1.0, 2.0, 0)], []),
        ],
        "",
    )
    read(html(nothing))


# ---------------------------------------------------------------------------------------- other forms


def test_csv_reads_back():
    made = list(csv.reader(io.StringIO(as_csv(TABLE))))
    assert made[0] == ['method, |all| & "some"', "mean", "mean: paper", "worst", "worst: note"]
    assert made[1] == ["fedu_1", "97.92 ± 1.06", "95.76 ± 0.46", "88.02", ""]
    assert made[2] == [NASTY, "97.35 ± 1.44", "94.00 ± 0.10", "85.40", "unstable 50% #2"]


def test_markdown_is_exact():
    assert markdown(TABLE) == (
        "Scores & co\n\nAbout <scores>.\n\n"
        '| method, \\|all\\| & "some" | mean | worst |\n| --- | ---: | ---: |\n'
        "| fedu_1 | **97.92 ± 1.06** ★ (paper 95.76 ± 0.46) | 88.02 |\n"
        f"| {NASTY} | 97.35 ± 1.44 (paper 94.00 ± 0.10) | *85.40* (unstable 50% #2) |\n\n"
        "A footer.\n"
    )


def test_latex_is_escaped():
    name = r"\textless{}script\textgreater{}alert('x')\textless{}/script\textgreater{}"
    assert latex(TABLE).splitlines()[1:] == [
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r'method, \textbar{}all\textbar{} \& "some" & mean & paper & worst & note \\',
        r"\midrule",
        r"fedu\_1 & \textbf{97.92 $\pm$ 1.06} & 95.76 $\pm$ 0.46 & 88.02 &  \\",
        rf'{name} " onload="1" \& \$5 & 97.35 $\pm$ 1.44 & 94.00 $\pm$ 0.10 & '
        r"\textit{85.40} & unstable 50\% \#2 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a_b", r"a\_b"),
        ("100 %", r"100 \%"),
        ("\\x{y}", r"\textbackslash{}x\{y\}"),
        ("~^", r"\textasciitilde{}\textasciicircum{}"),
        ("μ̃ηρ ≥ 2 − 1", "$\\mu$\u0303$\\eta$$\\rho$ $\\ge$ 2 $-$ 1"),
        ("two\nlines", "two lines"),
    ],
)
def test_latex_of_signs(text, wanted):
    from fedlap.report.page.tables import escaped

    assert escaped(text) == wanted


def test_everything_is_written_and_the_same_again(tmp_path):
    assert write(PAGE, tmp_path / "one") == tmp_path / "one" / "page.html"
    found = {
        str(path.relative_to(tmp_path / "one")) for path in (tmp_path / "one").rglob("*") if path.is_file()
    }
    figures = {
        f"figures/{name}.{form}" for name in ("curves", "gains", "held", "graph") for form in ("png", "pdf")
    }
    assert found == {"page.html", "tables/scores.md", "tables/scores.csv", "tables/scores.tex"} | figures
    for name in figures:
        head = (tmp_path / "one" / name).read_bytes()[:4]
        assert head == (b"\x89PNG" if name.endswith("png") else b"%PDF")
    links = re.findall(
        r'href="((?:tables|figures)/[^"]+)"', (tmp_path / "one" / "page.html").read_text("utf-8")
    )
    assert set(links) == found - {"page.html"}
    write(PAGE, tmp_path / "two")
    for name in found:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_names_of_files_are_checked(tmp_path):
    table = TableSection("t", "", "../t", ["a"], [])
    with pytest.raises(InputError, match="names a section's files"):
        write(Page("p", "", [table], ""), tmp_path)
    twice = TableSection("t", "", "t", ["a"], [])
    with pytest.raises(InputError, match="each name once"):
        write(Page("p", "", [twice, twice], ""), tmp_path)


# ----------------------------------------------------------------------------------------- geometry


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (-3, 7, [-2, 0, 2, 4, 6]),
        (97.2, 98.1, [97.2, 97.4, 97.6, 97.8, 98.0]),
        (1e-7, 6e-7, [1e-7, 2e-7, 3e-7, 4e-7, 5e-7, 6e-7]),
    ],
)
def test_linear_ticks(low, high, wanted):
    assert linear_ticks(low, high) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0.001, 10, [0.001, 0.01, 0.1, 1, 10]),
        (1e-12, 1, [1e-12, 1e-9, 1e-6, 1e-3, 1]),
        (0.1, 2, [0.1, 0.2, 0.5, 1, 2]),
        (0.42, 0.49, [0.42, 0.44, 0.46, 0.48]),
    ],
)
def test_log_ticks(low, high, wanted):
    assert log_ticks(low, high) == pytest.approx(wanted, rel=1e-12)


def test_texts_of_numbers():
    assert [tick_text(x) for x in (0, 0.0, 1, 0.1 + 0.2, -2.5, 1e-7, 5e8, 123456)] == [
        "0", "0", "1", "0.3", "−2.5", "1e−7", "5e8", "123456",
    ]  # fmt: skip
    assert [short(x) for x in (1 / 3, -2, math.nan)] == ["0.33333", "−2", "–"]


def test_scales_put_ends_at_ends():
    plain = Scale.over([2, 4, math.nan], 10, 110)
    assert [plain.at(x) for x in (2, 3, 4, math.nan)] == [10, 60, 110, None]
    log = Scale.over([0.01, 1], 0, 100, log=True)
    assert log.at(0.1) == pytest.approx(50)
    assert [log.at(x) for x in (0, -1)] == [None, None]
    zero = Scale.over([0, 0.01, 1], 0, 100, log=True)
    assert zero.at(0) == 0
    assert 0 < zero.at(0.01) < zero.at(0.1) < zero.at(1) == 100
    assert zero.ticks()[0] == 0
    assert Scale.over([5, 5], 0, 1).at(5) == pytest.approx(0.5)  # nothing is divided by zero


def test_gaps_break_lines():
    panel = Panel("t", "x", "y", [Series("s", [1, 2, 3, 4, 5], [1, 2, math.nan, 2, 1])])
    text = curves(panel, {"s": 0})
    assert re.search(r'class="line" d="([^"]+)"', text)[1].count("M") == 2


def test_bars_are_sorted_and_counted():
    bars = BarsSection("t", "", "n", ["a", "b", "c", "d"], [("m", [-1.0, 2.0, math.nan, 0.0])], "points")
    assert ordered(bars, 0) == [("b", 2.0), ("d", 0.0), ("a", -1.0)]
    assert counted(ordered(bars, 0)) == "1 above zero, up to 2 (b); 1 below, down to −1 (a); 1 at zero"
    assert counted([("b", 2.0), ("d", 1.0)]) == "2 from 1 (d) to 2 (b)"
    assert counted([("b", 2.0), ("d", 0.0)]) == "1 above zero, up to 2 (b); 1 at zero"
    assert counted([("b", 0.0)]) == "1 at zero"


def test_drawings_keep_proportions_and_up_is_up():
    made = fitted([(0, 0), (2, 0), (0, 1)], 300, 200, 10)
    assert made == [(10, 170), (290, 170), (10, 30)]
    assert fitted([(5, 5)], 300, 200, 10) == [(150, 100)]


def test_a_method_has_one_colour_on_a_page():
    names = places(PAGE)
    assert list(names) == ["fedu_1", NASTY, "third"]
    assert len(MARKS) == len(MATPLOTLIB_MARKS)


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(
    ("colours", "ground"), [(LIGHT, "#ffffff"), (DARK, "#14171a")], ids=["light", "dark"]
)
def test_colours_stand_out(colours, ground):
    for colour in colours:
        dark, bright = sorted([luminance(colour), luminance(ground)])
        assert (bright + 0.05) / (dark + 0.05) >= 3, colour
