"""`fedlap theory`: what it says of a run, of one that is not convex, and of mistakes."""

import json

import pytest


@pytest.fixture
def kept(call):
    """Make a small run and return its folder."""

    def run(*words):
        code, out, err = call("run", "--data", "synthetic", "--rounds", "6", *words, "--json")
        assert code == 0, err
        return json.loads(out)["folder"]

    return run


def test_theory_of_a_run(kept, call, tmp_path):
    folder = kept("--set", "model.l2=0.1", "--strength", "0.05")
    code, out, err = call("theory", folder)
    assert code == 0, err
    for word in ("α 0.1", "Theorem 1", "Theorem 2", "times too large", "Lemma 1", "bound.png", "measured"):
        assert word in out
    code, out, _ = call("theory", folder, "--json", "--repeat", "--accuracy", "0.5")
    said = json.loads(out)
    assert code == 0
    assert (tmp_path / "runs").joinpath(said["picture"]).read_bytes().startswith(b"\x89PNG")
    assert said["accuracy"] == 0.5
    assert [at for at, _ in said["gaps"]] == list(range(7))
    assert all(gap > 0 for _, gap in said["gaps"])
    assert said["gaps"][-1][1] < said["gaps"][0][1]
    # The mean of J is above J of the mean, since J is convex.
    of_mean, mean = dict(said["gaps_of_weighted_iterate"]), dict(said["weighted_gaps"])
    assert all(of_mean[at] <= mean[at] + 1e-6 for at in of_mean)
    assert said["mean_slope"] > 0


def test_theory_of_what_is_not_convex(kept, call):
    code, out, err = call("theory", kept())  # no L2 term
    assert code == 0, err
    assert "Theorem 1 does not hold here: α = 0" in out
    assert "bound.png" not in out
    code, out, err = call("theory", kept("--model", "mlp", "--set", "model.hidden=[4]"), "--json")
    assert code == 0, err
    said = json.loads(out)
    assert said["theorem1"] is None
    assert said["curvature"]["origin"] == "estimate"
    assert said["theorem2"]["times_too_large"] > 1


def test_mistakes_of_theory_are_one_line(kept, call, tmp_path):
    other = kept("--algorithm", "local")
    unstable = ["--strength", "50", "--set", "algorithm.allow_unstable=true", "--rounds", "60"]
    code, _, _ = call("run", "--data", "synthetic", *unstable)
    assert code == 2
    (diverged,) = (path.parent for path in (tmp_path / "runs").glob("*/diverged.json"))
    for words, said in (
        (["theory", other], "is a run of local; use a run of fedu or dfedu"),
        (["theory", str(diverged)], "has diverged"),
        (["theory", str(tmp_path)], "is not the folder of a run"),
        (["theory", other, "--accuracy", "-1"], "above zero"),
    ):
        code, _, err = call(*words)
        assert code == 2
        assert err.count("\n") == 1
        assert said in err
