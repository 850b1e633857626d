"""Draw how sampling slows FedU: J − J* by round for three shares of clients, and accuracy by round.

FedU keeps the models of clients that are not sampled, so that what all models have in common advances at the
share S/N of full speed. Methods with a shared model do not have this problem.
"""

import numpy as np
from figure_files import BLUE, FAINT, GREEN, GREY, ORANGE, PURPLE, Facts, Tables, run_script
from matplotlib.figure import Figure

import fedlap as fl
from fedlap.theory import LaplacianProblem, find_optimum

NAME = "sampled-clients"
PAGE = "explanation/when-not.md"
CLIENTS, SHARES, L2, LR, PULL = 20, (1.0, 0.3, 0.1), 0.01, 0.05, 0.3
ROUNDS, EVERY = 300, 5
SEEDS = 5
METHODS = {
    "FedU": {"name": "fedu"},
    "fedu-passing": {"name": "fedu-passing"},
    "FedAvg": {"name": "fedavg"},
    "pFedMe": {"name": "pfedme"},
    "Local": {"name": "local"},
}
COLOURS = {"FedU": BLUE, "fedu-passing": PURPLE, "FedAvg": GREEN, "pFedMe": GREY, "Local": ORANGE}
SHARE_COLOURS = (GREEN, PURPLE, BLUE)


def load_clients(seed: int) -> fl.Federation:
    """Return the clients of digits, whose rows are alike: without a difference, speed is all that matters."""
    return fl.data.load("digits", partition=fl.partition.Iid(CLIENTS), seed=seed)


def measure_gap(share: float, rounds: int = ROUNDS) -> list[float]:
    """Return J − J* of FedU with full gradients after every few rounds."""
    federation, model = load_clients(0), fl.models.linear(l2=L2)
    graph = fl.Graph.complete(federation.clients)
    method = fl.FedU(graph, strength=PULL / graph.rho, lr=LR)
    result = fl.fit(
        method, federation, model, rounds=rounds, batch="all", sample=share, evaluate_every=EVERY,
        score_training="always", dtype="float64",
    )  # fmt: skip
    best = find_optimum(LaplacianProblem.of(method, federation, model, batch="all")).value
    gaps = np.array([score.objective for score in result.scores], dtype=float) - best
    return gaps.round(6).tolist()


def measure_accuracy(seeds: int = SEEDS, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return the pooled test accuracy in % by round of every method, S = 0.1 N."""
    methods = {name: {**method, "lr": LR} for name, method in METHODS.items()}
    result = fl.compare(
        methods, data=load_clients, seeds=range(seeds), rounds=rounds, sample=SHARES[-1],
        evaluate_every=EVERY, score_training="never",
    )  # fmt: skip
    return {
        name: (100 * result.comparison.curve(name, "accuracy")[1].mean(0)).round(3).tolist()
        for name in METHODS
    }


def compute() -> Facts:
    """Return both sets of curves."""
    return {
        "rounds": list(range(EVERY, ROUNDS + 1, EVERY)),
        "gap": {str(share): measure_gap(share) for share in SHARES},
        "accuracy": measure_accuracy(),
    }


def draw(facts: Facts) -> Figure:
    """Draw J − J* on the left, and the accuracy on the right."""
    figure = Figure((9.2, 3.1))
    left, right = figure.subplots(1, 2)
    for share, colour in zip(SHARES, SHARE_COLOURS, strict=True):
        left.plot(facts["rounds"], facts["gap"][str(share)], color=colour, label=f"S = {format_share(share)}")
    left.set(yscale="log", title="FedU: J − J* (full gradients)", xlabel="round")
    left.legend()
    for name, colour in COLOURS.items():
        right.plot(facts["rounds"], facts["accuracy"][name], color=colour, label=name)
    right.set(title=f"S = {format_share(SHARES[-1])}: test accuracy, %", xlabel="round")
    right.legend(loc="lower right")
    for ax in (left, right):
        ax.grid(color=FAINT, linewidth=0.4)
    figure.subplots_adjust(wspace=0.2)
    return figure


def format_share(share: float) -> str:
    """Return the number of sampled clients as a multiple of N."""
    return "N" if share == 1 else f"{share:g} N"


def find_round(facts: Facts, share: float, target: float) -> str:
    """Return the first scored round in which J − J* is at most the target."""
    found = [
        round for round, gap in zip(facts["rounds"], facts["gap"][str(share)], strict=True) if gap <= target
    ]
    return f"{found[0]}" if found else f"more than {facts['rounds'][-1]}"


def tables(facts: Facts) -> Tables:
    """Return the tables of the page: rounds until J is as small as after 20 of S = N, and accuracies."""
    target = float(np.interp(ROUNDS / 15, facts["rounds"], facts["gap"]["1.0"]))
    rows = [[format_share(share), find_round(facts, share, target)] for share in SHARES]
    places = [facts["rounds"].index(round) for round in (ROUNDS // 10, ROUNDS // 3, ROUNDS)]
    accuracy = [[name, *(f"{facts['accuracy'][name][place]:.1f}" for place in places)] for name in METHODS]
    return {
        (PAGE, "sampled clients: rounds"): (["S", f"rounds until J − J* ≤ {target:.3g}"], rows),
        (PAGE, "sampled clients: accuracy"): (
            ["S = 0.1 N", *(f"round {facts['rounds'][place]}" for place in places)], accuracy,
        ),
    }  # fmt: skip


if __name__ == "__main__":
    run_script(NAME, compute, draw, tables)
