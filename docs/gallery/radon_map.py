"""A map of gains.

The gain of a county is how much smaller its test error is with FedU than alone. A
single split of the houses says little about a county with three test houses, so this
is the mean over ten splits. Most counties gain, some lose: a method that
is better on average is not better for everybody.

Figure: counties of Minnesota as dots, joined along their borders; most dots are blue,
which is a gain, and a few are orange; three without test houses are white.
"""

import matplotlib.pyplot as plt
from matplotlib.colors import LinearSegmentedColormap

import fedlap as fl

federation, graph = fl.data.load_with_graph("radon", seed=0)
comparison = fl.compare(
    {"fedu": {"name": "fedu", "strength": 1.0, "mixing": "implicit"}, "local": "local"},
    data="radon",
    graph="known",
    seeds=range(10),
    evaluate_every=0,
)
errors = comparison.clients.groupby(["method", "client"])["value"].mean().unstack(0)
gain = errors["local"] - errors["fedu"]

plt.figure(figsize=(6, 5.6), layout="constrained")
places = dict(zip(federation.clients, federation.places.values, strict=True))
for k, county in enumerate(graph.clients):
    for other in graph.neighbours(k)[0]:
        ends = zip(places[county], places[graph.clients[other]], strict=True)
        plt.plot(*ends, color="grey", linewidth=0.5, zorder=0)
x, y = zip(*places.values(), strict=True)
colours = LinearSegmentedColormap.from_list("gain", ["#dd7d2a", "lightgrey", "#3a7ad0"])
plt.scatter(x, y, s=90, c="white", edgecolors="grey")  # all, also without test houses
gains = gain.reindex(places)
plt.scatter(x, y, s=90, c=gains, cmap=colours, vmin=-1, vmax=1, edgecolors="grey")
plt.colorbar(label="RMSE alone minus RMSE with FedU")
plt.gca().set_aspect(1.4)
plt.axis("off")
plt.title(f"{(gain > 0).sum()} counties gain, {(gain < 0).sum()} lose")
plt.savefig("radon_map.png", dpi=150)
