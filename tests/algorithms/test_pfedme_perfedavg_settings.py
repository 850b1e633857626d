"""pFedMe and Per-FedAvg as they are set: what is refused, the command line, and digits."""

import pytest

import fedlap as fl


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fl.PFedMe(regularisation=0), "pfedme: regularisation = 0"),
        (lambda: fl.PFedMe(regularisation=-1.0), "pfedme: regularisation = -1.0"),
        (lambda: fl.PFedMe(inner_steps=0), "pfedme: inner_steps = 0"),
        (lambda: fl.PFedMe(inner_steps=True), "pfedme: inner_steps = True"),
        (lambda: fl.PFedMe(inner_lr=float("nan")), "pfedme: inner_lr = nan"),
        (lambda: fl.PFedMe(inner_lr=0.0), "pfedme: inner_lr = 0.0"),
        (lambda: fl.PFedMe(server_mix=0.0), "pfedme: server_mix = 0.0"),
        (lambda: fl.PFedMe(lr=0.0), "pfedme: lr = 0.0"),
        (lambda: fl.PFedMe(local_steps=0), "local_steps = 0"),
        (lambda: fl.PFedMe(20.0, inner_lr=0.1), "0.1·20 = 2, .* below 0.1$"),
        (lambda: fl.PerFedAvg(adapt_lr=-0.1), "perfedavg: adapt_lr = -0.1"),
        (lambda: fl.PerFedAvg(adapt_lr=float("inf")), "perfedavg: adapt_lr = inf"),
        (lambda: fl.PerFedAvg(lr=-1.0), "perfedavg: lr = -1.0"),
        (lambda: fl.PerFedAvg(local_steps=1, local_epochs=1), "both set"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, words):
    with pytest.raises(fl.InputError, match=words):
        make()


def test_an_unknown_form_is_refused():
    method = fl.PerFedAvg()
    object.__setattr__(method, "form", "second")  # past the checker of types, which is on in tests only
    with pytest.raises(fl.InputError, match="form = 'second'; use 'first-order' or 'hessian'"):
        method.__post_init__()


def test_the_command_line_knows_the_forms(call):
    words = ["run", "--algorithm", "perfedavg", "--rounds", "1", "--json"]
    for form in ("first-order", "hessian"):
        code, out, _ = call(*words, "--set", f"algorithm.form={form}")
        assert code == 0
        assert f'"form": "{form}"' in out
    code, _, error = call(*words, "--set", "algorithm.form=second")
    assert code == 2
    assert "first-order" in error


@pytest.mark.parametrize("method", [fl.PFedMe(), fl.PerFedAvg(), fl.PerFedAvg("hessian")])
def test_they_learn_the_digits(method):
    result = fl.fit(method, fl.data.load("digits"), fl.models.linear(), rounds=30, evaluate_every=0)
    assert result.scores[-1].accuracy > 0.88
