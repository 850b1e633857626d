"""Train on your own arrays with your own graph: three hospitals, two of which are similar."""

import numpy as np

import fedlap as fl


def main() -> None:
    """Train FedU on three hospitals and predict with the model of one hospital."""
    rng = np.random.default_rng(0)
    truth = {
        "north": np.array([1.0, -2.0, 0.5]),
        "south": np.array([1.1, -1.9, 0.4]),
        "island": np.array([-1.0, 0.5, 2.0]),
    }
    arrays = {}
    for name, weights in truth.items():
        x = rng.normal(size=(24 if name == "north" else 60, 3))  # north has little data
        arrays[name] = (x, (x @ weights + 0.5 * rng.normal(size=len(x)) > 0).astype(int))

    federation = fl.Federation.from_arrays(arrays, test_share=0.25, seed=0)
    graph = fl.Graph.from_edges([("north", "south", 1.0)], federation.clients)

    method = fl.FedU(graph, strength=1.0, lr=0.1)
    result = fl.fit(method, federation, fl.models.linear(), rounds=200, batch=10)
    last = result.scores[-1]
    print(f"accuracy {last.accuracy:.3f} pooled, {last.accuracy_mean:.3f} mean over clients")
    print("predictions of north's model for three patients:", result.predict("north", np.eye(3)).tolist())
    print(result.model("north"))


if __name__ == "__main__":
    main()
