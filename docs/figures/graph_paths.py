"""Draw what graphs do to models: the minimiser of J by strength for a star, a ring, clusters and others.

A model has two parameters, so that it is a point in the plane. The facts have, for each graph, the exact
minimiser W* of J at strengths from almost none to almost infinite.
"""

import math
from collections.abc import Mapping

import numpy as np
from figure_files import BLUE, FAINT, GREEN, INK, ORANGE, PAPER, Facts, run_script
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fedlap as fl
from fedlap.theory import LaplacianProblem, find_optimum

NAME = "graph-paths"
CLIENTS, CLUSTERS, SEED = 12, 3, 5
PULLS = [10**exponent for exponent in np.linspace(-2.5, 3.5, 31).tolist()]  # ηρ
SHOWN = {"star": 0.3, "complete": 30.0, "ring": 3.0, "clusters": 3.0}  # ηρ of the filled circles
TITLES = {
    "star": "star with a server\n= pFedMe",
    "complete": "complete, strong pull\n→ FedAvg",
    "ring": "ring",
    "clusters": "three clusters",
}
COLOURS = (BLUE, ORANGE, GREEN)


def load_clients() -> fl.Federation:
    """Return clients with one feature, whose true lines are alike within three clusters."""
    data = fl.data.synthetic(
        "regression", clients=CLIENTS, clusters=CLUSTERS, features=1, rows=12, test_rows=0, smoothness=1.0,
        size=2.0, noise=1.0, seed=SEED,
    )  # fmt: skip
    return data.federation


def build_graphs(names: tuple[str, ...]) -> Mapping[str, fl.Graph]:
    """Return the graphs of the figure without a server: minimising over its model leaves weights of 1/N."""
    size = len(names) // CLUSTERS
    groups = [names[place : place + size] for place in range(0, len(names), size)]
    edges = [(one, other) for group in groups for one in group for other in group if one < other]
    return {
        "star": fl.Graph.complete(names, 1 / len(names)),
        "complete": fl.Graph.complete(names),
        "ring": fl.Graph.ring(names),
        "clusters": fl.Graph.from_edges(edges, names),
    }


def find_models(federation: fl.Federation, graph: fl.Graph, strength: float) -> list[list[float]]:
    """Return the minimiser W* of J, one row per client."""
    method = fl.FedU(graph, strength=strength, mixing="implicit")
    problem = LaplacianProblem.of(method, federation, fl.models.linear(), batch="all")
    return [[round(value, 4) for value in row] for row in find_optimum(problem).W.tolist()]


def compute() -> Facts:
    """Return W* by graph and strength."""
    federation = load_clients()
    graphs = build_graphs(federation.clients)
    return {
        "pulls": PULLS,
        "alone": find_models(federation, graphs["ring"], 0.0),
        "paths": {
            name: [find_models(federation, graph, pull / graph.rho) for pull in PULLS]
            for name, graph in graphs.items()
        },
    }


def draw(facts: Facts) -> Figure:
    """Draw the graphs above, and the models of their clients below."""
    figure = Figure((9.2, 4.9))
    axes = figure.subplots(2, 4, height_ratios=(1, 1.35))
    alone, pulls = np.array(facts["alone"]), np.array(facts["pulls"])
    colours = [COLOURS[place * CLUSTERS // CLIENTS] for place in range(CLIENTS)]
    for column, (name, pull) in enumerate(SHOWN.items()):
        draw_graph(axes[0, column], name, colours)
        ax, paths = axes[1, column], np.array(facts["paths"][name])
        chosen = int(np.abs(np.log(pulls / pull)).argmin())
        for client, colour in enumerate(colours):
            path = np.concatenate([alone[None, client], paths[:, client]])
            ax.plot(*path.T, color=FAINT, linewidth=0.9, zorder=1)
            ax.plot(*path[: chosen + 2].T, color=colour, linewidth=1.3, zorder=2)
        ax.scatter(*alone.T, s=26, facecolors=PAPER, edgecolors=colours, linewidths=1.2, zorder=3)
        ax.scatter(*paths[chosen].T, s=24, color=colours, zorder=4)
        ax.scatter(*paths[-1].T, s=46, marker="x", color=INK, linewidths=1.4, zorder=5)
        ax.set(xticks=[], yticks=[])
        ax.set_xlabel("slope")
        ax.margins(0.12)
        if not column:
            ax.set_ylabel("intercept")
    figure.subplots_adjust(hspace=0.08, wspace=0.1)
    return figure


def draw_graph(ax: Axes, name: str, colours: list[str]) -> None:
    """Draw the clients on a circle with their edges, and a server in the middle of a star."""
    angles = [math.pi / 2 - 2 * math.pi * place / CLIENTS for place in range(CLIENTS)]
    places = [(math.cos(angle), math.sin(angle)) for angle in angles]
    size = CLIENTS // CLUSTERS
    pairs = {
        "star": [],
        "complete": [(a, b) for b in range(CLIENTS) for a in range(b)],
        "ring": [(a, (a + 1) % CLIENTS) for a in range(CLIENTS)],
        "clusters": [(a, b) for b in range(CLIENTS) for a in range(b) if a // size == b // size],
    }[name]
    for a, b in pairs:
        ax.plot(*zip(places[a], places[b], strict=True), color=FAINT, linewidth=1.0, zorder=1)
    if name == "star":
        for place in places:
            ax.plot((0, place[0]), (0, place[1]), color=FAINT, linewidth=1.0, zorder=1)
        ax.scatter(0, 0, s=60, marker="s", color=INK, zorder=2)
    ax.scatter(*zip(*places, strict=True), s=44, color=colours, zorder=3)
    ax.set_title(TITLES[name])
    ax.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
    ax.axis("off")


if __name__ == "__main__":
    run_script(NAME, compute, draw)
