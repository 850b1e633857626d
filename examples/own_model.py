"""Train your own network: any feed-forward torch.nn.Module, one copy per client."""

from torch import nn

import fedlap as fl


def main() -> None:
    """Train a small convolutional network per client with FedU."""
    federation = fl.data.load("digits", seed=0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    graph = fl.Graph.complete(federation.clients)
    result = fl.fit(
        fl.FedU(graph, lr=0.1), federation, fl.models.module(net), rounds=20, batch=10, evaluate_every=5
    )
    for score in result.scores:
        worst = f"worst tenth of clients {100 * score.accuracy_worst:.2f} %"
        print(f"round {score.round}: accuracy {100 * score.accuracy:.2f} %, {worst}")


if __name__ == "__main__":
    main()
