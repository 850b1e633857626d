"""Few clients per round: steps are passed on.

In every round only three of thirty clients take part. FedU moves their three models
only, so that training needs many rounds. `fedu-passing` lets the server guess the
steps of the others along the graph and moves them too, without a further byte. It is
far ahead in the first rounds, and FedU closes in later.

Figure: test accuracy by round with a tenth of the clients per round; fedu-passing
rises much earlier than fedu.
"""

import matplotlib.pyplot as plt

import fedlap as fl

data = fl.data.synthetic(clusters=5, clients=30, rows=20, seed=0)
schedule = {"rounds": 200, "sample": 0.1, "evaluate_every": 5}
scores = {}
for name, kind in [("fedu-passing", fl.FedUPassing), ("fedu", fl.FedU)]:
    method = kind(data.graph, strength=0.1, lr=0.1, mixing="implicit")
    result = fl.fit(method, data.federation, fl.models.linear(), **schedule)
    scores[name] = result.scores

plt.figure(figsize=(7, 3.6), layout="constrained")
for name, curve in scores.items():
    accuracy = [100 * score.accuracy for score in curve]
    plt.plot([score.round for score in curve], accuracy, label=name)
plt.xlabel("round")
plt.ylabel("test accuracy in %")
plt.legend()
plt.savefig("sampled_clients.png", dpi=150)
