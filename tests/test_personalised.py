"""pFedMe and Per-FedAvg: against their papers as loops, their gradients, their optima and their limits."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import fedlap as fl
import reference
from conftest import random_arrays
from fedlap.engines import Clients
from fedlap.engines.task import StackTask
from fedlap.models import Model
from fedlap.work import Work

COUNTS = [7, 23, 5, 12, 41, 9, 2]
LABELS, L2, LR, SEED = 3, 0.02, 0.05, 11
SIZE = 4 * LABELS + LABELS
CPU = torch.device("cpu")

every_work = pytest.mark.parametrize("work", [{"steps": 3}, {"epochs": 2}], ids=["steps", "epochs"])
every_batch = pytest.mark.parametrize("batch", [4, "all"])
either_sample = pytest.mark.parametrize("sample", [0.45, 1.0])
either_form = pytest.mark.parametrize("form", ["first-order", "hessian"])


def fields(work):
    return {f"local_{kind}": number for kind, number in work.items()}


def trained(algorithm, federation, start, **schedule):
    schedule = {"rounds": 10, "seed": SEED, "evaluate_every": 0, **schedule}
    model = fl.models.linear(l2=schedule.pop("l2", L2))
    return fl.fit(algorithm, federation, model, start=torch.as_tensor(start), dtype="float64", **schedule)


def distance(one, other):
    return float((torch.as_tensor(one) - torch.as_tensor(other)).abs().max())


# The papers' pseudo-code, client by client


def pfedme(data, start, lam, inner_steps, inner_lr, mix, *, batch, share, work):
    """Algorithm 1 with gradient steps for the inner problem: the personal models, and w."""
    w, theta = start.copy(), {k: start.copy() for k in data}
    for t in range(1, 11):
        sent = []
        for k in reference.sampled(list(data), SEED, t, share):
            x, y = data[k]
            own, personal = w.copy(), w.copy()
            for rows in reference.batches(k, len(x), SEED, t, batch, **work):
                for _ in range(inner_steps):
                    slope = reference.gradient(personal, x[rows], y[rows], LABELS, L2)
                    personal = personal - inner_lr * (slope + lam * (personal - own))
                own = own - LR * lam * (own - personal)
            theta[k] = personal
            sent.append(own)
        w = (1 - mix) * w + mix / len(sent) * sum(sent)
    return np.stack(list(theta.values())), w


def loss(w, x, y, widths=(4, LABELS), l2=L2):
    """F of a dense network as plain PyTorch, for one client."""
    rest = w
    for i, o in itertools.pairwise(widths):
        weight, bias, rest = rest[: i * o].reshape(o, i), rest[i * o : i * o + o], rest[i * o + o :]
        x = x @ weight.T + bias
        x = x.relu() if len(rest) else x
    return cross_entropy(x, y) + l2 / 2 * w.square().sum()


def hessian(w, x, y, widths=(4, LABELS)):
    """∇²F of one client, dense."""
    return torch.func.jacrev(torch.func.grad(loss))(w, x, y, widths)


def perfedavg(data, start, form, alpha, *, batch, share, work):
    """Algorithm 1, with several times the mini-batches, so that steps are as many: personal models, and w."""
    group = 3 if form == "hessian" else 2
    work = {kind: number * group for kind, number in work.items()}
    gradient = partial(reference.gradient, labels=LABELS, l2=L2)
    w = start.copy()
    for t in range(1, 11):
        sent = []
        for k in reference.sampled(list(data), SEED, t, share):
            x, y = data[k]
            own = w.copy()
            drawn = reference.batches(k, len(x), SEED, t, batch, **work)
            while len(drawn) >= group:
                (here, there, *curved), drawn = drawn[:group], drawn[group:]
                ahead = own - alpha * gradient(own, x[here], y[here])
                step = gradient(ahead, x[there], y[there])
                if form == "hessian":
                    rows = curved[0]
                    dense = hessian(*map(torch.from_numpy, (own, x[rows], y[rows]))).numpy()
                    step = step - alpha * dense @ step
                own = own - LR * step
            sent.append(own)
        w = sum(sent) / len(sent)
    return np.stack([w - alpha * gradient(w, x, y) for x, y in data.values()]), w


@pytest.fixture(scope="module")
def problem():
    arrays = random_arrays(COUNTS, labels=LABELS)
    start = np.random.default_rng(1).normal(size=SIZE) / 3
    return arrays, fl.Federation.from_arrays(arrays, test_share=0, labels=LABELS), start


@every_batch
@every_work
@either_sample
def test_pfedme_is_its_algorithm_1(problem, sample, work, batch):
    arrays, federation, start = problem
    theta, w = pfedme(arrays, start, 3.0, 4, 0.1, 1.6, batch=batch, share=sample, work=work)
    method = fl.PFedMe(3.0, inner_steps=4, inner_lr=0.1, server_mix=1.6, lr=LR, **fields(work))
    result = trained(method, federation, start, batch=batch, sample=sample)
    assert distance(result.models, theta) < 1e-9
    assert distance(result.server[0], w) < 1e-9
    assert distance(w, start) > 0.1


@every_batch
@every_work
@either_sample
@either_form
def test_per_fedavg_is_its_algorithm_1(problem, form, sample, work, batch):
    arrays, federation, start = problem
    models, w = perfedavg(arrays, start, form, 0.2, batch=batch, share=sample, work=work)
    result = trained(
        fl.PerFedAvg(form, 0.2, lr=LR, **fields(work)), federation, start, batch=batch, sample=sample
    )
    assert distance(result.models, models) < 1e-9
    assert distance(result.server[0], w) < 1e-9
    assert distance(w, start) > 0.02


# Gradients of what is minimised


def sized(hidden):
    return Model(fl.models.mlp(hidden, l2=L2).build((4,), LABELS), fl.models.CrossEntropy(), L2)


class Given:
    """A task whose mini-batches are these."""

    def __init__(self, task, *batches):
        self.task, self.given = task, batches

    def batches(self):
        yield from self.given

    def __getattr__(self, name):
        return getattr(self.task, name)


@pytest.fixture(params=[(), (5,), (6, 5)], ids=["linear", "mlp", "deep mlp"])
def stacked(problem, request):
    """A task, two mini-batches of every client, some of them short, and a stack of models."""
    _, federation, _ = problem
    model = sized(request.param)
    clients = Clients.of([federation], [SEED], model, 4, CPU, torch.float64)
    cohort = clients.cohort(clients.by_count(torch.arange(len(COUNTS))))
    task = StackTask(clients, cohort, 1, Work(2, False))
    w = torch.stack([model.start(k) for k in range(len(COUNTS))])
    return (4, *request.param, LABELS), task, *task.batches(), w


def used(batch, place):
    """A client's rows of a mini-batch, without padding."""
    inside = batch.weight[place] > 0
    return batch.x[place][inside], batch.y[place][inside]


def test_curvature_is_the_hessian_times_a_vector(stacked):
    widths, task, batch, _, w = stacked
    v = torch.randn(w.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = task.curvature(w, batch, v)
    for place in range(len(w)):
        dense = hessian(w[place], *used(batch, place), widths)
        assert distance(found[place], dense @ v[place]) < 1e-12
    assert found.abs().max() > 0.1


def test_per_fedavg_descends_on_the_loss_after_adaptation(stacked):
    """With D″ = D the step is the whole derivative of F̃(w − α∇F̃(w; D); D′)."""
    widths, task, here, there, w = stacked
    alpha = 0.3
    _, ups = fl.PerFedAvg("hessian", alpha, lr=1.0).local(None, w, Given(task, here, there, here))
    _, short = fl.PerFedAvg("first-order", alpha, lr=1.0).local(None, w, Given(task, here, there))
    for place in range(len(w)):

        def adapted(at, place=place):
            ahead = at - alpha * torch.func.grad(loss)(at, *used(here, place), widths)
            return loss(ahead, *used(there, place), widths)

        assert distance(w[place] - ups[place], torch.func.grad(adapted)(w[place])) < 1e-12
    assert distance(ups, short) > 1e-3  # which first order leaves out


def quadratics(data, l2):
    """H and c of every F(θ) = ½θᵀHθ − cᵀθ + constant, and the constants, for squared error."""
    made = []
    for x, y in data.values():
        x, y = torch.from_numpy(x), torch.from_numpy(y)
        eye = torch.eye(y.shape[1], dtype=torch.float64)
        rows = torch.stack([torch.cat([torch.kron(eye, sample), eye], 1) for sample in x])  # ∂ scores / ∂ θ
        H = (rows.mT @ rows).mean(0) + l2 * torch.eye(rows.shape[-1], dtype=torch.float64)
        made.append((H, (rows.mT @ y.unsqueeze(-1)).mean(0).squeeze(-1), y.square().sum(1).mean() / 2))
    return tuple(torch.stack(each) for each in zip(*made, strict=True))


@pytest.fixture(scope="module")
def squares():
    """Clients with squared error, and H, c and constant of their losses."""
    arrays = random_arrays([7, 23, 5, 12, 40], real=True, labels=2)
    federation = fl.Federation.from_arrays(arrays, test_share=0)
    return federation, *quadratics(arrays, 0.3)


def minimiser(H, c, lam, w):
    """argmin_θ F(θ) + (λ/2)‖θ − w‖², of every client."""
    return torch.linalg.solve(H + lam * torch.eye(len(w), dtype=torch.float64), c + lam * w)


def one_exact_round(squares, lam, lr=0.2):
    """The result of a round in which the inner problem is solved, and the model it began from."""
    federation, H, _, _ = squares
    start = torch.randn(10, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    inner_lr = 1 / (lam + torch.linalg.eigvalsh(H).max().item())
    method = fl.PFedMe(lam, 150, inner_lr, lr=lr, local_steps=1)
    return trained(method, federation, start, rounds=1, batch="all", l2=0.3), start


def test_pfedme_s_inner_steps_reach_the_minimiser_of_the_moreau_envelope(squares):
    _, H, c, constant = squares
    lam, lr = 1.3, 0.2
    result, start = one_exact_round(squares, lam, lr)
    assert distance(result.models, minimiser(H, c, lam, start)) < 1e-12

    def envelopes(w):
        theta = minimiser(H, c, lam, w)
        values = torch.einsum("ki,kij,kj->k", theta, H, theta) / 2
        return values - (c * theta).sum(1) + constant + lam / 2 * (theta - w).square().sum(1)

    slopes = torch.func.jacrev(envelopes)(start)
    assert distance(lam * (start - result.models), slopes) < 1e-11
    assert distance(start - result.server[0], lr * slopes.mean(0)) < 1e-12


def test_the_envelope_s_gradient_goes_to_the_loss_s_as_regularisation_grows(squares):
    """λ(w − θ) = ∇F(w) + O(1/λ): a step on the envelope becomes a step on the loss."""
    _, H, c, _ = squares
    far = []
    for lam in (200.0, 400.0, 800.0):
        result, start = one_exact_round(squares, lam)
        far.append((lam * (start - result.models) - (H @ start - c)).norm().item())
    ratios = [one / other for one, other in itertools.pairwise(far)]
    assert all(1.9 < ratio < 2.0 for ratio in ratios), ratios


# One optimum: pFedMe's, and FedU's on the star


@pytest.fixture(scope="module")
def joint(squares):
    """λ, the minimiser θ_k, w of Σ_k F_k(θ_k) + (λ/2)‖θ_k − w‖² and the minimum."""
    _, H, c, constant = squares
    lam, (clients, size) = 1.0, c.shape
    eye = torch.eye(size, dtype=torch.float64)
    whole = torch.zeros(clients + 1, size, clients + 1, size, dtype=torch.float64)
    for k in range(clients):
        whole[k, :, k] = H[k] + lam * eye
        whole[k, :, clients] = whole[clients, :, k] = -lam * eye
    whole[clients, :, clients] = clients * lam * eye
    right = torch.cat([c, c.new_zeros(1, size)]).flatten()
    best = torch.linalg.solve(whole.reshape(right.numel(), -1), right).view(-1, size)
    return lam, best, (constant.sum() - right @ best.flatten() / 2).item()


@pytest.mark.slow
def test_pfedme_converges_to_the_joint_optimum(squares, joint):
    federation, H, _, _ = squares
    lam, best, least = joint
    inner_lr = 1 / (lam + torch.linalg.eigvalsh(H).max().item())
    method = fl.PFedMe(lam, 80, inner_lr, lr=1 / lam, local_steps=1)
    result = trained(method, federation, np.zeros(10), rounds=100, batch="all", l2=0.3)
    assert distance(result.models, best[:-1]) < 1e-9
    assert distance(result.server[0], best[-1]) < 1e-9
    assert result.scores[-1].objective == pytest.approx(least, abs=1e-9)


@pytest.mark.slow
def test_fedu_on_the_star_comes_to_pfedme_s_optimum_in_proportion_to_its_step(squares, joint):
    federation, *_ = squares
    lam, best, least = joint
    star = fl.Graph.star(federation.clients, server=True)
    distances = []
    for step in (0.1, 0.05, 0.025):  # μ̃ = μR
        method = fl.FedU(star, strength=lam, lr=step / 5, local_steps=5)
        rounds = int(12 / step)
        result = trained(method, federation, best[:-1], rounds=rounds, batch="all", l2=0.3)
        assert result.scores[-1].objective >= least - 1e-12
        distances.append((result.server - best).norm().item())
    ratios = [far / near for far, near in itertools.pairwise(distances)]
    assert distances[-1] < 0.02 * best.norm().item()
    assert all(1.9 < ratio < 2.1 for ratio in ratios), (distances, ratios)


# Limits


@pytest.fixture(scope="module")
def equals():
    """Clients with as many rows as each other, where FedAvg's mean is the plain one."""
    return fl.Federation.from_arrays(random_arrays([11] * 5, labels=LABELS), test_share=0, labels=LABELS)


@every_batch
@every_work
@either_sample
def test_pfedme_that_goes_all_the_way_to_one_inner_step_is_fedavg(problem, equals, sample, work, batch):
    """μλ = 1 and K = 1: w_k becomes θ_k, a gradient step of length ν from w_k."""
    _, _, start = problem
    method = fl.PFedMe(4.0, inner_steps=1, inner_lr=LR, lr=0.25, **fields(work))
    one = trained(method, equals, start, batch=batch, sample=sample)
    other = trained(fl.FedAvg(lr=LR, **fields(work)), equals, start, batch=batch, sample=sample)
    assert distance(one.server, other.server) < 1e-12
    assert distance(one.server[0], start) > 0.1


@either_sample
@either_form
def test_per_fedavg_that_does_not_adapt_is_fedavg(problem, equals, form, sample):
    _, _, start = problem
    method = fl.PerFedAvg(form, adapt_lr=0, lr=LR)
    one = trained(method, equals, start, batch="all", sample=sample)
    other = trained(fl.FedAvg(lr=LR), equals, start, batch="all", sample=sample)
    assert distance(one.models, other.models) < 1e-12
    assert distance(one.server[0], start) > 0.05


@either_form
def test_per_fedavg_that_does_not_adapt_descends_on_its_second_batches(problem, form):
    arrays, federation, start = problem
    group = 3 if form == "hessian" else 2
    w = start
    for t in range(1, 11):
        sent = []
        for k, (x, y) in arrays.items():
            own = w
            for rows in reference.batches(k, len(x), SEED, t, 4, steps=3 * group)[1::group]:
                own = own - LR * reference.gradient(own, x[rows], y[rows], LABELS, L2)
            sent.append(own)
        w = sum(sent) / len(sent)
    result = trained(fl.PerFedAvg(form, 0.0, lr=LR, local_steps=3), federation, start, batch=4)
    assert distance(result.models, w) < 1e-12


# What is refused, and the command line


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
        (lambda: fl.PerFedAvg(local_steps=1, local_epochs=1), "both given"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, words):
    with pytest.raises(fl.InputError, match=words):
        make()


def test_an_unknown_form_is_refused():
    method = fl.PerFedAvg()
    object.__setattr__(method, "form", "second")  # past the checker of types, which is on in tests only
    with pytest.raises(fl.InputError, match="form = 'second'; it must be 'first-order' or 'hessian'"):
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
