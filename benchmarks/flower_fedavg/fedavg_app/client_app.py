"""A client: five local steps on random rows, from the global model."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedavg_app.network import build_network

BATCH, STEPS, LR = 20, 5, 0.03

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the model after local training."""
    network = build_network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(network.parameters(), lr=LR)
    for _ in range(STEPS):
        x, y = torch.randn(BATCH, 784), torch.randint(10, (BATCH,))
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": BATCH * STEPS})
    content = {"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)
