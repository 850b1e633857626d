"""The right graph against a wrong one.

Does a graph help because its edges are right, or would any edges do? Shuffle the
names of the clients: the graph keeps its shape, and its edges join the wrong
counties. On every line below, the two ends have the same houses for training and for
testing. A line that rises says that the borders carry information.

Figure: ten lines, one per split of the houses, from the test RMSE with county borders
to that with shuffled borders; all of them rise.
"""

import matplotlib.pyplot as plt

import fedlap as fl

comparison = fl.compare(
    {"FedU": {"name": "fedu", "strength": 1.0, "mixing": "implicit"}},
    data="radon",
    graph=["known", "shuffled"],
    seeds=range(10),
    evaluate_every=0,
)
scores = comparison.scores.query("metric == 'rmse'").set_index(["method", "seed"])
right, wrong = scores.value["FedU (known)"], scores.value["FedU (shuffled)"]
print(comparison.verdict)

plt.figure(figsize=(5, 4), layout="constrained")
for seed in right.index:
    rises = wrong[seed] > right[seed]
    plt.plot([0, 1], [right[seed], wrong[seed]], "o-", color="C0" if rises else "C1")
plt.xticks([0, 1], ["county borders", "shuffled borders"])
plt.xlim(-0.3, 1.3)
plt.ylabel("test RMSE")
plt.title(f"{(wrong > right).sum()} of {len(right)} lines rise")
plt.savefig("shuffled_graph.png", dpi=150)
