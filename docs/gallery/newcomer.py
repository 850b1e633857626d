"""A newcomer joins.

Twelve counties are left out of training and join later, each by itself. A newcomer
brings a few houses and the names of its neighbours; no other county trains again.
With one or two houses, the mean of its own houses says nearly nothing, and the
neighbours' models are a good start. With more houses, the newcomer depends on them
less.

Figure: test RMSE of newcomers by the number of their houses; the joined model is far
better than the mean of their own houses with one house, and the two lines approach
each other as houses are added.
"""

import matplotlib.pyplot as plt
import torch

import fedlap as fl

federation, graph = fl.data.load_with_graph("radon", scale="none", test_share=0.0)
names = federation.clients
rows = {name: federation.train.client(k) for k, name in enumerate(names)}
near = {a: [names[b] for b in graph.neighbours(k)[0]] for k, a in enumerate(names)}
newcomers = [county for county in rows if 12 <= len(rows[county][1]) <= 25]
others = [county for county in rows if county not in newcomers]
borders = [(a, b) for a in others for b in near[a] if a < b and b in others]

known = fl.Federation.from_arrays({county: rows[county] for county in others})
method = fl.FedU(fl.Graph.from_edges(borders, others), strength=1.0)
trained = fl.fit(method, known, fl.models.linear())

houses = [1, 2, 3, 4, 6, 8]  # of a newcomer; its other houses test its model
errors = []  # per county and order of its houses: of the joined model and of the mean
draws = torch.Generator().manual_seed(0)
for county in newcomers * 5:
    order = torch.randperm(len(rows[county][1]), generator=draws)
    x, y = (values[order] for values in rows[county])
    neighbours = {name: 1.0 for name in near[county] if name in others}
    joined = [trained.join(x[:n], y[:n], neighbours).predict(x[8:]) for n in houses]
    means = [y[:n].mean() for n in houses]
    errors.append(
        [[(p - y[8:]).square().mean() for p in row] for row in (joined, means)]
    )
rmse = torch.tensor(errors).mean(0).sqrt()

plt.figure(figsize=(7, 3.6), layout="constrained")
plt.plot(houses, rmse[0], "o-", label="joined model")
plt.plot(houses, rmse[1], "o-", label="mean of own houses")
plt.xlabel("houses of the newcomer")
plt.ylabel("test RMSE")
plt.legend()
plt.savefig("newcomer.png", dpi=150)
