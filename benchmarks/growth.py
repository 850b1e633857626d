"""Plot the time of a round against the number of clients, parameters, samples and edges.

python -m benchmarks.growth [growth.png]
"""

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from scipy.sparse import coo_array

import fedlap as fl

REPEATS, ROUNDS, LABELS = 5, 3, 10


def seconds(clients: int = 100, features: int = 200, steps: int = 5, degree: int = 6) -> float:
    """Return the median seconds of a round of FedU."""
    rng = np.random.default_rng(0)
    arrays = {
        str(k): (rng.normal(size=(40, features)).astype(np.float32), rng.integers(0, LABELS, 40))
        for k in range(clients)
    }
    federation = fl.Federation.from_arrays(arrays, test_share=0.0, labels=LABELS, scale="none")
    index, steps_away = np.arange(clients), np.arange(1, degree // 2 + 1)
    begin, end = np.repeat(index, len(steps_away)), (index[:, None] + steps_away).ravel() % clients
    half = coo_array((np.ones(len(begin)), (begin, end)), shape=(clients, clients))
    graph = fl.Graph.from_matrix((half + half.T).tocsr(), federation.clients)
    method = fl.FedU(graph, strength=1e-4, local_steps=steps)
    times = [
        fl.fit(method, federation, fl.models.linear(), rounds=ROUNDS, seed=seed, evaluate_every=0)
        for seed in range(REPEATS)
    ]
    return statistics.median(result.scores[-1].seconds / ROUNDS for result in times)


AXES: dict[str, tuple[list[int], Callable[[int], float]]] = {
    "clients": ([10, 30, 100, 300, 1000], lambda n: seconds(clients=n)),
    "parameters per model": ([20, 60, 200, 600, 2000], lambda n: seconds(features=n)),
    "samples per client and round": ([1, 3, 10, 30, 100], lambda n: seconds(steps=n)),
    "edges of 2,500 clients": ([2, 6, 20, 60, 200], lambda n: seconds(2_500, 50, 1, n)),
}
UNIT = {
    "parameters per model": LABELS,
    "samples per client and round": 20,
    "edges of 2,500 clients": 1_250,
}


def draw(path: Path, console: Console) -> None:
    """Measure along each axis, print the slopes, and draw them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 4, figsize=(15, 3.8), layout="constrained", sharey=True)
    for axis, (name, (values, measure)) in zip(axes, AXES.items(), strict=True):
        x = np.array(values) * UNIT.get(name, 1)
        y = 1000 * np.array([measure(value) for value in values])
        slope = np.polyfit(np.log(x[-3:]), np.log(y[-3:]), 1)[0]
        console.print(
            f"with {name} {x[0]:,} → {x[-1]:,}: {y[0]:.2f} → {y[-1]:.2f} ms, power {slope:.2f} at the end"
        )
        axis.loglog(x, y, "o-", linewidth=1.8)
        axis.set_title(f"power {slope:.2f} at the end")
        axis.set_xlabel(name)
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("ms/round")
    figure.suptitle(
        "FedU, logistic: 100 clients, 2,010 parameters, 5 steps of 20 rows, 300 edges, unless varied"
    )
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    console.print(f"figure written to {path}")


def main() -> int:
    """Read the path and draw."""
    draw(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("growth.png")), Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
