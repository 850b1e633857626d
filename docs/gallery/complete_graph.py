"""The complete graph: from Local to FedAvg.

On a complete graph, the strength leads from one well-known method to another. Without
a pull, every client is alone, as in Local. As the strength grows, all models become
one, and this model is FedAvg's. The best strength is between the two.

Figure: left, the distance of the clients' models from FedAvg's model falls to zero as
the strength grows; right, test accuracy begins at Local's, ends at FedAvg's, and is
highest between them.
"""

import matplotlib.pyplot as plt

import fedlap as fl

split = fl.partition.Dirichlet(clients=10, alpha=0.3)
federation = fl.data.load("digits", partition=split, seed=0)
federation = federation.scarce(1.0, keep=0.1)  # a tenth of the training rows
schedule = {"rounds": 200, "batch": "all", "evaluate_every": 0}


def train(method):
    result = fl.fit(method, federation, fl.models.linear(l2=0.01), **schedule)
    return result.models, 100 * result.scores[-1].accuracy


local_models, local_accuracy = train(fl.Local(lr=0.1))
shared_model, shared_accuracy = train(fl.FedAvg(lr=0.1))
graph = fl.Graph.complete(federation.clients)
strengths, distances, accuracies = [10.0**k for k in range(-4, 3)], [], []
for strength in strengths:
    models, accuracy = train(fl.FedU(graph, strength, lr=0.1, mixing="implicit"))
    distances.append(float((models - shared_model).norm(dim=1).mean()))
    accuracies.append(accuracy)

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
left.loglog(strengths, distances, "o-")
left.set(xlabel="strength", ylabel="distance from FedAvg's model")
right.semilogx(strengths, accuracies, "o-", label="FedU, complete graph")
right.axhline(local_accuracy, color="C1", linestyle=":", label="Local")
right.axhline(shared_accuracy, color="C2", linestyle="--", label="FedAvg")
right.set(xlabel="strength", ylabel="test accuracy in %")
right.legend()
plt.savefig("complete_graph.png", dpi=150)
