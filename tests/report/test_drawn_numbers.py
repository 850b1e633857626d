"""Numbers of the drawings of a real page, from hover texts and positions, are those of its CSV files."""

import re

import numpy as np
import pandas
import pytest

from pages import page

WORDS = ("--data", "radon", "--graph", "known", "--strength", "1", "--rounds", "4", "--threads", "1")
NUMBER = r"[−-]?[\d.]+(?:e[−+-]?\d+)?"
CLOSE = {"rtol": 5.1e-5}  # of five significant digits


@pytest.fixture
def report(call, no_figures, tmp_path):
    """Return the text of the page, and its CSV files by name."""
    code, out, err = call("compare", *WORDS, "--algorithms", "fedu,local", "--seeds", "0-1")
    assert code == 0, err
    (folder,) = (tmp_path / "runs").glob("radon-compare-*")
    code, out, err = call("report", str(folder), out=False)
    assert code == 0, err
    address = page(out)
    tables = {path.stem: pandas.read_csv(path) for path in (address.parent / "tables").glob("*.csv")}
    return address.read_text("utf-8"), tables


def read_number(text):
    return float(text.replace("−", "-"))


def find_drawings(text, title):
    """Return the drawings of the section with a title."""
    (section,) = [part for part in text.split("<section")[1:] if f">{title}<" in part]
    return re.findall(r"<svg.*?</svg>", section, re.S)


def read_axis(drawing, kind):
    """Return slope and offset of an axis: values by positions of its ticks."""
    places, values = [], []
    pattern = r'<text x="([\d.]+)" y="([\d.]+)" class="(mid|end)">([−\d.]+)</text>'
    for x, y, label, value in re.findall(pattern, drawing):
        if label == kind:
            places.append(float(x) if kind == "mid" else float(y) - 4)
            values.append(read_number(value))
    assert len(places) >= 2
    return np.polyfit(places, values, 1)


def test_colours_of_maps_stand_for_the_numbers_of_the_tables(report):
    text, tables = report
    names = {"Map of gains over local": ("map-gains", "gain_rmse", "reduction of RMSE over local")}
    names |= {"Map of floor": ("map-coefficient-1", "coefficient", "log_radon")}
    for title, (name, column, meaning) in names.items():
        (drawing,) = find_drawings(text, title)
        drawn = re.findall(r"<title>([^<]+): ([^<]+)</title>", drawing)
        table = tables[name].set_index("client")[column]
        assert len(drawn) == len(table) == 85
        values = [
            np.nan if shown == "no value" else read_number(re.match(NUMBER, shown)[0]) for _, shown in drawn
        ]
        np.testing.assert_allclose(values, table[[client for client, _ in drawn]], **CLOSE)
        assert f">{meaning}" in drawing


def test_the_forest_plot_has_the_coefficients_and_intervals_of_the_table(report):
    text, tables = report
    drawings = find_drawings(text, "Coefficients per client")
    table = tables["coefficients"]
    assert len(drawings) == table["coefficient"].nunique() == 2
    pattern = (
        rf"<g><title>([^<]+?): ({NUMBER}) \(({NUMBER}) to ({NUMBER})\)[^<]*</title>"
        r'<path class="span" d="M([\d.]+) [\d.]+H([\d.]+)"/><circle class="point" cx="([\d.]+)"'
    )
    for drawing, (_, wanted) in zip(drawings, table.groupby("coefficient", sort=False), strict=True):
        wanted = wanted.set_index("client")
        found = re.findall(pattern, drawing)
        assert len(found) == len(wanted)
        wanted = wanted.loc[[client for client, *_ in found]]
        half = 1.959964 * wanted["standard_error"]
        shown = np.array([[read_number(text) for text in line[1:4]] for line in found])
        limits = np.stack([wanted["value"], wanted["value"] - half, wanted["value"] + half], 1)
        np.testing.assert_allclose(shown, limits, rtol=6e-5, atol=1e-6)
        slope, offset = read_axis(drawing, "mid")
        placed = np.array([[float(line[6]), float(line[4]), float(line[5])] for line in found])
        np.testing.assert_allclose(slope * placed + offset, limits, atol=2 * slope * 0.1)


def test_points_of_the_scatter_plot_are_the_predictions_of_the_table(report):
    text, tables = report
    (drawing,) = find_drawings(text, "Predicted against true")
    pattern = rf'cx="([\d.]+)" cy="([\d.]+)" r="2.6"><title>([^<]+): ({NUMBER}), ({NUMBER})</title>'
    found = re.findall(pattern, drawing)
    table = tables["predictions"]
    assert [line[2] for line in found] == table["client"].tolist()
    wanted = table[["true", "predicted"]].to_numpy()
    shown = np.array([[read_number(text) for text in line[3:]] for line in found])
    np.testing.assert_allclose(shown, wanted, **CLOSE)
    for column, kind in enumerate(("mid", "end")):
        slope, offset = read_axis(drawing, kind)
        placed = slope * np.array([float(line[column]) for line in found]) + offset
        np.testing.assert_allclose(placed, wanted[:, column], atol=abs(slope) * 0.2)


def test_scores_by_seed_and_curves_are_tidy_and_those_of_the_means(report):
    _, tables = report
    by_seed, curves = tables["scores-by-seed"], tables["curves"]
    assert list(by_seed.columns) == ["method", "seed", "metric", "value"]
    assert list(curves.columns) == ["method", "seed", "round", "metric", "value"]
    means = tables["scores"].set_index("algorithm")
    for metric, column in {"rmse": "pooled_rmse", "rmse_mean": "client_mean_rmse"}.items():
        values = by_seed[by_seed["metric"] == metric].groupby("method")["value"]
        np.testing.assert_allclose(values.mean()[means.index], means[f"{column}_mean"], rtol=1e-12)
        np.testing.assert_allclose(values.std()[means.index], means[f"{column}_std"], rtol=1e-9)
    last = curves[(curves["round"] == 4) & (curves["metric"] == "rmse")].set_index(["method", "seed"])
    scores = by_seed[by_seed["metric"] == "rmse"].set_index(["method", "seed"])
    np.testing.assert_array_equal(last["value"], scores["value"][last.index])
    assert curves["round"].nunique() > 2


def test_curves_of_the_page_are_the_means_of_their_table(report):
    text, tables = report
    drawing = next(part for part in find_drawings(text, "Learning curves") if 'class="series' in part)
    curves = tables["curves"]
    means = curves[curves["metric"] == "rmse"].groupby(["method", "round"])["value"].mean()
    slope, offset = read_axis(drawing, "end")
    lines = dict(re.findall(r'data-name="(\w+)">.*?<path class="line" d="([^"]+)"', drawing))
    assert set(lines) == set(tables["curves"]["method"])
    for method, values in means.groupby("method"):
        heights = [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", lines[method])]
        np.testing.assert_allclose(slope * np.array(heights) + offset, values, atol=abs(slope) * 0.2)
