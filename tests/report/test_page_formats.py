"""The other forms of a page's tables and figures: exact answers, and the files that are written."""

import csv
import io
import math
import re

import pytest

from fedlap.errors import InputError
from fedlap.report.page import (
    Page,
    Records,
    TableSection,
    render_html,
    render_latex,
    render_markdown,
    write_page,
)
from fedlap.report.page import render_csv as as_csv
from pages import NASTY, PAGE, TABLE


@pytest.mark.parametrize(
    "form", [lambda t: render_html(PAGE), render_markdown, render_latex], ids=["html", "md", "tex"]
)
def test_every_number_of_a_table_is_there(form):
    text = form(TABLE)
    for row in TABLE.rows:
        for cell in row:
            for number in re.findall(r"\d+\.\d+", f"{cell.text} {cell.note}"):
                assert number in text


def test_csv_is_plain_values():
    rows = list(csv.reader(io.StringIO(as_csv(TABLE.records))))
    assert rows[0] == ["method", "mean_percent", "std_percent", "paper_percent", "worst_percent"]
    assert rows[1] == ["fedu_1", "97.92", "1.06", "95.76", "88.02"]
    assert rows[2] == [NASTY, "97.35", "1.44", "94.0", "-85.4"]
    third = 1 / 3
    kinds = Records(["n", "x", "none", "nan", "text"], [[680, third, None, math.nan, "a, b"]])
    assert as_csv(kinds) == f'n,x,none,nan,text\n680,{third!r},,,"a, b"\n'


def test_markdown_is_exact():
    assert render_markdown(TABLE) == (
        "Scores & co\n\nAbout <scores>.\n\n"
        '| method, \\|all\\| & "some" | mean | worst |\n| --- | ---: | ---: |\n'
        "| fedu_1 | **97.92 ± 1.06** ★ (paper 95.76 ± 0.46) | 88.02 |\n"
        f"| {NASTY} | 97.35 ± 1.44 (paper 94.00 ± 0.10) | *85.40* (unstable 50% #2) |\n\n"
        "A footer.\n"
    )


def test_latex_is_escaped():
    name = r"\textless{}script\textgreater{}alert('x')\textless{}/script\textgreater{}"
    assert render_latex(TABLE).splitlines()[1:] == [
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
    from fedlap.report.page.table_formats import escape_latex

    assert escape_latex(text) == wanted


def test_everything_is_written_and_the_same_again(tmp_path):
    assert write_page(PAGE, tmp_path / "one") == tmp_path / "one" / "page.html"
    found = {
        str(path.relative_to(tmp_path / "one")) for path in (tmp_path / "one").rglob("*") if path.is_file()
    }
    figures = {
        f"figures/{name}.{form}"
        for name in ("curves", "gains", "held", "graph", "map", "slopes", "predicted")
        for form in ("png", "pdf")
    }
    tables = {"tables/scores.md", "tables/scores.csv", "tables/scores.tex", "tables/gains.csv"}
    tables |= {f"tables/{name}.csv" for name in ("map", "slopes", "predicted")}
    assert found == {"page.html"} | tables | figures
    for name in figures:
        head = (tmp_path / "one" / name).read_bytes()[:4]
        assert head == (b"\x89PNG" if name.endswith("png") else b"%PDF")
    links = re.findall(
        r'href="((?:tables|figures)/[^"]+)"', (tmp_path / "one" / "page.html").read_text("utf-8")
    )
    assert set(links) == found - {"page.html"}
    write_page(PAGE, tmp_path / "two")
    for name in found:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_of_very_many_bars_some_are_drawn_and_all_are_kept(tmp_path):
    from fedlap.report.page import BarsSection
    from fedlap.report.page.svg_shapes import MAX_DRAWN_BARS, sort_bars, thin_bars

    gains = [place - 1_000 for place in range(2_500)]
    names = [f"client {place}" for place in range(2_500)]
    records = Records(["client", "gain_points"], [list(pair) for pair in zip(names, gains, strict=True)])
    section = BarsSection("Gains", "", "gains", names, [("fedu", gains)], "points", records)
    text = write_page(Page("p", "", [section], ""), tmp_path).read_text("utf-8")
    assert text.count('<rect class="bar ') == MAX_DRAWN_BARS == 400
    assert "400 of 2,500 bars are drawn" in text
    assert (
        "1499 above zero, up to 1499 (client 2499); 1000 below, down to −1000 (client 0); 1 at zero" in text
    )
    drawn = thin_bars(sort_bars(section, 0))
    assert (drawn[0], drawn[-1]) == (("client 2499", 1_499), ("client 0", -1_000))
    lines = (tmp_path / "tables" / "gains.csv").read_text().splitlines()
    assert len(lines) == 2_501
    assert lines[1] == "client 0,-1000"


def test_names_of_files_are_checked(tmp_path):
    table = TableSection("t", "", "../t", ["a"], [])
    with pytest.raises(InputError, match="invalid or repeated section name"):
        write_page(Page("p", "", [table], ""), tmp_path)
    twice = TableSection("t", "", "t", ["a"], [])
    with pytest.raises(InputError, match="each name once"):
        write_page(Page("p", "", [twice, twice], ""), tmp_path)
