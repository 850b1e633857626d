"""A star is pFedMe.

Join every client to one more vertex, the server, whose model has no rows of its own.
FedU on this star then minimises the objective of pFedMe: personal models, pulled
towards a common one. The two methods take different ways, and end at the same value
and at the same models.

Figure: left, the distance of J from its minimum falls to zero for FedU on the star
and for pFedMe; right, the coefficients of all counties lie on the diagonal, so both
methods find equal models.
"""

import matplotlib.pyplot as plt

import fedlap as fl

federation = fl.data.load("radon", seed=0)
model = fl.models.linear(l2=0.1)
schedule = {"rounds": 300, "batch": "all", "evaluate_every": 5, "dtype": "float64"}

star = fl.Graph.star(federation.clients, server=True)
fedu = fl.FedU(star, strength=1.0, lr=0.05, local_steps=1, mixing="implicit")
inner = {"inner_lr": 0.2, "inner_steps": 20}
pfedme = fl.PFedMe(regularisation=1.0, lr=1.0, local_steps=1, **inner)
results = [
    fl.fit(method, federation, model, score_training="always", **schedule)
    for method in (fedu, pfedme)
]
lowest = min(score.objective for result in results for score in result.scores)

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for result, name in zip(results, ["FedU on a star", "pFedMe"], strict=True):
    gaps = [score.objective - lowest for score in result.scores]
    left.semilogy([score.round for score in result.scores], gaps, label=name)
left.set(xlabel="round", ylabel="J minus its lowest value", ylim=(1e-6, None))
left.legend()
right.axline((0, 0), slope=1, color="grey", linewidth=0.8)
right.plot(results[0].models, results[1].models, ".")
right.set(xlabel="parameters by FedU", ylabel="parameters by pFedMe")
plt.savefig("star.png", dpi=150)
