"""Too weak, too strong.

The strength decides how much a county listens to its neighbours. If it is too small,
each county has the noisy model of its few houses. If it is too large, all counties
have one model and lose their differences. On radon the valley between these is wide:
from 0.3 to 10 every strength is better than one model for all.

Figure: test RMSE by strength is a valley; it begins at the line of Local, and ends
above the line of one model for all (Global).
"""

import matplotlib.pyplot as plt

import fedlap as fl

strengths = [0.001, 0.01, 0.1, 0.3, 1, 3, 10, 100, 1000]
fedu = {"name": "fedu", "mixing": "implicit"}
methods = {f"fedu {s}": fedu | {"strength": s} for s in strengths}
comparison = fl.compare(
    methods | {"local": "local", "global": "global"},
    data="radon",
    graph="known",
    seeds=range(5),
    evaluate_every=0,
)
mean = comparison.table["pooled_rmse_mean"]
error = comparison.table["pooled_rmse_std"] / 5**0.5  # of the mean of five splits

plt.figure(figsize=(7, 3.6), layout="constrained")
rows = list(methods)
plt.errorbar(strengths, mean[rows], error[rows], fmt="o-", capsize=3, label="FedU")
plt.axhline(mean["local"], color="C1", linestyle=":", label="Local")
plt.axhline(mean["global"], color="C2", linestyle="--", label="Global")
plt.xscale("log")
plt.xlabel("strength")
plt.ylabel("test RMSE, mean of five splits")
plt.legend()
plt.savefig("strength.png", dpi=150)
