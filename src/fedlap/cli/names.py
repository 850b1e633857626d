"""Names that help and completion list, without the registries, which take seconds to load.

A test compares them with the registries.
"""

ALGORITHM_NAMES = (
    "fedu",
    "dfedu",
    "fedu-passing",
    "fedu-learned",
    "local",
    "global",
    "fedavg",
    "fedprox",
    "scaffold",
    "mocha",
    "pfedme",
    "perfedavg",
    "afl",
    "ditto",
    "apfl",
    "fedper",
    "l2gd",
    "lasso",
    "dpsgd",
    "fedrep",
    "ifca",
    "cfl",
    "fedamp",
    "pfedgraph",
    "fedfomo",
    "dfedu-learned",
    "gtvmin",
)
DATA_NAMES = (
    "har",
    "vehicle",
    "mnist",
    "cifar10",
    "digits",
    "radon",
    "colorado",
    "synthetic",
)  # all but "file" and "folder"
MISSING_RULE_NAMES = ("refuse", "drop", "mean")
SPLIT_NAMES = ("random", "time")
PARTITION_NAMES = ("natural", "labels", "dirichlet", "quantity", "iid")
GRAPH_NAMES = (  # all but "file", and the graph that is part of the data
    "complete",
    "ring",
    "path",
    "star",
    "empty",
    "grid",
    "erdos-renyi",
    "watts-strogatz",
    "blocks",
    "random",
    "equal",
    "weighted",
    "similar",
    "nearest",
    "kernel",
    "known",
)
MODEL_NAMES = ("linear", "mlp", "cnn")
TRACKER_NAMES = ("tensorboard", "wandb", "mlflow")
LEARNER_NAMES = ("kernel", "smooth", "cosine")
METRIC_NAMES = ("accuracy", "loss", "rmse", "mae", "r2")
COLOUR_NAMES = (*METRIC_NAMES, "rows", "label", "component")
RECIPE_NAMES = (
    "figure-dirichlet",
    "figure-graphs",
    "figure-strengths",
    "table-baselines",
    "table-down-sampled",
    "table-full-multi-task",
    "table-full-sampled",
    "table-peers",
    "table-scaling",
)
