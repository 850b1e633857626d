"""`fedlap theory`: what it says of a run, of one that is not convex, and of mistakes."""

import json

import pytest


@pytest.fixture
def train_run(call):
    """Train a small run and return its folder."""

    def run(*words):
        code, out, err = call("run", "--data", "synthetic", "--rounds", "6", *words, "--json")
        assert code == 0, err
        return json.loads(out)["folder"]

    return run


def test_theory_of_a_run(train_run, call, tmp_path):
    folder = train_run("--set", "model.l2=0.1", "--strength", "0.05", "--score-training", "always")
    code, out, err = call("theory", folder)
    assert code == 0, err
    for word in ("α 0.1", "Theorem 1", "Theorem 2", "times too large", "Lemma 1", "bound.png", "measured"):
        assert word in out
    assert "Late models" not in out  # the method has a server
    code, out, _ = call("theory", folder, "--json", "--repeat", "--accuracy", "0.5")
    answer = json.loads(out)
    assert code == 0
    assert (tmp_path / "runs").joinpath(answer["picture"]).read_bytes().startswith(b"\x89PNG")
    assert answer["accuracy"] == 0.5
    assert [at for at, _ in answer["gaps"]] == list(range(7))
    assert all(gap > 0 for _, gap in answer["gaps"])
    assert answer["gaps"][-1][1] < answer["gaps"][0][1]
    # The mean of J is above J of the mean, since J is convex.
    of_mean, mean = dict(answer["gaps_of_weighted_iterate"]), dict(answer["weighted_gaps"])
    assert all(of_mean[at] <= mean[at] + 1e-6 for at in of_mean)
    assert answer["mean_slope"] > 0


def test_theory_measures_what_was_not_scored_if_it_repeats_the_run(train_run, call):
    words = ("--set", "model.l2=0.1", "--strength", "0.05")
    folder = train_run(*words)
    code, _, err = call("theory", folder)
    assert code == 2
    assert "J(W) of its last round only; pass --repeat to measure it in all scored rounds" in err
    repeated = json.loads(call("theory", folder, "--json", "--repeat")[1])
    scored = train_run(*words, "--score-training", "always")
    assert scored != folder
    stored = json.loads(call("theory", scored, "--json", "--repeat")[1])
    assert [at for at, _ in repeated["gaps"]] == list(range(7))
    for name in ("gaps", "weighted_gaps"):
        for one, other in zip(repeated[name], stored[name], strict=True):
            assert one == pytest.approx(other, abs=1e-4)  # the run scores in single precision


def test_theory_of_what_is_not_convex(train_run, call):
    code, out, err = call("theory", train_run())  # no L2 term
    assert code == 0, err
    assert "Theorem 1 does not apply: α = 0" in out
    assert "bound.png" not in out
    code, out, err = call("theory", train_run("--model", "mlp", "--set", "model.hidden=[4]"), "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["theorem1"] is None
    assert answer["curvature"]["origin"] == "estimate"
    assert answer["theorem2"]["times_too_large"] > 1


def test_theory_of_peers_covers_late_models(train_run, call):
    words = ("--set", "model.l2=0.1", "--score-training", "always", "--lr", "0.01", "--strength", "0.5")
    code, out, err = call("theory", train_run("--algorithm", "dfedu", "--batch", "all", *words))
    assert code == 0, err
    assert "Late models: μRηd = 0.725 with the largest degree d = 29, below 1.00" in out
    assert "lead to the fixed point of rounds without delays" in out


def test_theory_of_compressed_peers(train_run, call):
    """Their models are a part of their private state, which a checkpoint stores without names."""
    peers = ("--algorithm", "dfedu", "--graph", "ring", "--set", "algorithm.compression=top-k:0.3")
    code, out, err = call("theory", train_run(*peers, "--set", "model.l2=0.1", "--strength", "0.05"))
    assert code == 2
    assert "J(W) of its last round only" in err
    code, out, err = call("theory", train_run(*peers))
    assert code == 0, err
    assert "its peers mix with compressed models" in out


def test_mistakes_of_theory_are_one_line(train_run, call, tmp_path):
    other = train_run("--algorithm", "local")
    unstable = ["--strength", "50", "--set", "algorithm.allow_unstable=true", "--rounds", "60"]
    code, _, _ = call("run", "--data", "synthetic", *unstable)
    assert code == 2
    (diverged,) = (path.parent for path in (tmp_path / "runs").glob("*/diverged.json"))
    for words, message in (
        (["theory", other], "is a run of local; use a run of fedu or dfedu"),
        (["theory", str(diverged)], "has diverged"),
        (["theory", str(tmp_path)], "is not the folder of a run"),
        (["theory", other, "--accuracy", "-1"], "above zero"),
    ):
        code, _, err = call(*words)
        assert code == 2
        assert err.count("\n") == 1
        assert message in err
