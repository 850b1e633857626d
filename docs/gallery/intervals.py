"""Intervals of coefficients.

What does a county with five houses know about its basements? Alone, not much: its
interval is long. With its neighbours the interval is about half as long. It allows for
the bias that the neighbours cause, which fedlap estimates from the rows.
[Simulations](../howto/personal-models.md#answers-per-client) check how often such
intervals hold the truth.

Figure: intervals of the level in the basement for twelve counties with four to six
training houses; those with FedU are about half as long as those of a county alone.
"""

import matplotlib.pyplot as plt
import numpy as np

import fedlap as fl

federation, graph = fl.data.load_with_graph("radon", seed=0)
schedule = {"rounds": 400, "batch": "all", "evaluate_every": 0}
methods = {
    "alone": fl.Local(lr=0.1),
    "FedU": fl.FedU(graph, strength=1.0, lr=0.1, mixing="implicit"),
}
tables = {}
for name, method in methods.items():
    result = fl.fit(method, federation, fl.models.linear(), **schedule)
    tables[name] = result.clients.set_index("client")
alone = tables["alone"].dropna(subset="intercept_error")
counties = alone[alone["train_rows"].between(4, 6)].index[:12]

plt.figure(figsize=(7, 4.2), layout="constrained")
heights = np.arange(len(counties), 0, -1)
for name, above, color in [("alone", 0.15, "C1"), ("FedU", -0.15, "C0")]:
    level, error = tables[name].loc[counties, ["intercept", "intercept_error"]].T.values
    plt.errorbar(level, heights + above, 0, 1.96 * error, "o", color=color, label=name)
plt.yticks(heights, counties)
plt.xlabel("logarithm of the radon level in the basement, with its 95 % interval")
plt.legend()
plt.savefig("intervals.png", dpi=150)
