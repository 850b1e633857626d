"""A graph that is learned from models.

Nobody knows here that the clients belong to five groups. The server of `fedu-learned`
begins with the complete graph and, every ten rounds, joins the clients whose models
are close. After a hundred rounds it has found the groups, up to one client that is in
the wrong one, and the models are as good as if the groups had been known.

Figure: left, the true graph, five blocks on the diagonal; centre, the learned weights
show the same blocks; right, test accuracy of Local, of FedU on the complete and the
learned graph, and of FedU on the true one.
"""

import matplotlib.pyplot as plt

import fedlap as fl

data = fl.data.synthetic(clusters=5, clients=30, rows=20, seed=0)
federation, truth = data.federation, data.graph
complete = fl.Graph.complete(federation.clients)
settings = {"strength": 0.1, "mixing": "implicit"}
methods = {
    "Local": fl.Local(),
    "complete": fl.FedU(complete, **settings),
    "learned": fl.FedULearned(complete, **settings),
    "true": fl.FedU(truth, **settings),
}
accuracy, servers = {}, {}
for name, method in methods.items():
    result = fl.fit(method, federation, fl.models.linear())
    accuracy[name], servers[name] = 100 * result.scores[-1].accuracy, result.server

figure, (left, centre, right) = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
left.imshow(truth.weights.matrix().toarray(), cmap="Blues")
left.set(title="true graph", xlabel="client")
centre.imshow(servers["learned"].weights.numpy(), cmap="Blues")
centre.set(title="learned weights", xlabel="client")
right.bar(list(accuracy), list(accuracy.values()), color=["C1", "C7", "C0", "C2"])
right.set(title="test accuracy in %", ylim=(0, 100))
plt.savefig("learned_graph.png", dpi=150)
