"""Each script of docs/gallery runs by itself, saves its figure, and shows what its text says."""

import runpy
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "gallery"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
MOST_LINES = 40  # of code


def check_star(names):
    fedu, pfedme = names["results"]
    assert fedu.scores[-1].objective == pytest.approx(pfedme.scores[-1].objective, rel=1e-7)
    assert (fedu.models - pfedme.models).abs().max() < 1e-3
    assert fedu.scores[0].objective > names["lowest"] + 1


def check_complete_graph(names):
    distances, accuracies = names["distances"], names["accuracies"]
    assert distances[-1] < distances[0] / 50
    assert all(after < before * 1.01 for before, after in pairwise(distances))
    assert accuracies[0] == pytest.approx(names["local_accuracy"], abs=1)
    assert accuracies[-1] == pytest.approx(names["shared_accuracy"], abs=0.5)
    assert accuracies.index(max(accuracies)) not in (0, len(accuracies) - 1)


def check_strength(names):
    mean, strengths = names["mean"], names["strengths"]
    fedu = mean[names["rows"]].to_numpy()
    assert fedu[0] == pytest.approx(mean["local"], rel=0.01)
    assert all(fedu[strengths.index(strength)] < mean["global"] for strength in (0.3, 1, 3, 10))
    assert fedu[-1] > mean["global"]
    steps = np.sign(np.diff(fedu))
    assert sum(before != after for before, after in pairwise(steps)) == 1  # a valley


def check_shuffled_graph(names):
    assert len(names["right"]) == 10
    assert (names["wrong"] > names["right"]).all()
    assert "this graph helps" in names["comparison"].verdict


def check_learned_graph(names):
    group, learned = np.arange(30) // 6, names["servers"]["learned"].weights.numpy()
    found = (learned @ np.eye(5)[group]).argmax(1)  # the group with the largest sum of weights
    assert (found != group).sum() == 1  # the one client in the wrong group
    accuracy = names["accuracy"]
    assert accuracy["learned"] > accuracy["true"] - 0.5
    assert accuracy["learned"] > max(accuracy["Local"], accuracy["complete"]) + 10


def check_sampled_clients(names):
    passing, fedu = names["scores"]["fedu-passing"], names["scores"]["fedu"]
    lead = [one.accuracy - other.accuracy for one, other in zip(passing, fedu, strict=True)]
    assert min(lead) > 0
    assert max(lead[:6]) > 3 * lead[-1]  # FedU closes in
    assert [score.bytes_up for score in passing] == [score.bytes_up for score in fedu]


def check_compressed_messages(names):
    scores = names["scores"]
    plain = scores["not compressed"][-1]
    for name, share in [("float16", 1 / 2), ("int8", 1 / 4)]:
        assert scores[name][-1].objective == pytest.approx(plain.objective, rel=1e-3)
        assert scores[name][-1].bytes_up == pytest.approx(share * plain.bytes_up, rel=0.05)
    top_k = scores["top-k:0.1"]
    levels = [score.objective for score in reversed(scores["int8"])]
    bytes_up = [score.bytes_up for score in reversed(scores["int8"])]
    for score in top_k[2:]:  # top-k has sent more than int8 when J is this low
        assert np.interp(score.objective, levels, bytes_up) < score.bytes_up


def check_radon_map(names):
    assert names["gains"].isna().sum() == 3  # the white dots of the caption
    gain = names["gain"].dropna()
    assert (gain > 0).sum() > 3 * (gain < 0).sum() > 0


def check_intervals(names):
    counties, tables = names["counties"], names["tables"]
    assert len(counties) == 12
    assert tables["alone"].loc[counties, "train_rows"].between(4, 6).all()
    shares = (
        tables["FedU"].loc[counties, "intercept_error"] / tables["alone"].loc[counties, "intercept_error"]
    )
    assert shares.max() < 1
    assert 0.4 < shares.mean() < 0.6


def check_newcomer(names):
    joined, means = names["rmse"].tolist()
    assert len(names["newcomers"]) == 12
    assert joined[0] < 0.75 * means[0]
    assert all(one < other for one, other in zip(joined, means, strict=True))
    gaps = [other - one for one, other in zip(joined, means, strict=True)]
    assert gaps == sorted(gaps, reverse=True)


CHECKS = {
    name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")
}


def test_every_script_has_a_check():
    assert sorted(CHECKS) == SCRIPTS
    assert len(SCRIPTS) == 10


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_short_and_begin_with_a_caption(name):
    _, docstring, code = (FOLDER / f"{name}.py").read_text("utf-8").split('"""')
    assert "\n\nFigure: " in docstring
    assert sum(bool(line.strip()) for line in code.splitlines()) <= MOST_LINES


@pytest.mark.filterwarnings("ignore::fedlap.errors.DataWarning")
@pytest.mark.docs
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_show_what_they_say(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    CHECKS[name](runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__"))
    assert (tmp_path / f"{name}.png").stat().st_size > 5_000
