"""FedAvg by FedJAX: `fedjax.algorithms.fed_avg` over clients in memory, `for_each_client` by its jit backend.

Choices, each the faster one on two cores:

- The jit backend, FedJAX's default on a CPU, and not the pmap one over two host devices.
- The gradient is `jax.grad` of a plain function and not of a Haiku module: the same arithmetic, no wrapper.

Difference: `shuffle_repeat_batch` shuffles in each epoch, but its batches cross epochs and the last one is
filled up, so a client takes ceil(5 rows / 20) steps and not 5 ceil(rows / 20).

FedJAX 0.0.17, its last release, calls `jax.tree_map`, which today's JAX no longer has; JAX 0.4.25 has it.
"""

import math
import time
from importlib.metadata import version

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import protocol
from protocol import BATCH, EPOCHS, LR


def loss(params: dict[str, jax.Array], batch: dict[str, jax.Array], rng: jax.Array) -> jax.Array:
    """Mean cross-entropy of a batch."""
    scores = jax.nn.log_softmax(batch["x"] @ params["weight"] + params["bias"])
    return -jnp.take_along_axis(scores, batch["y"][:, None], 1).mean()


def main() -> None:
    """Train one round for every request."""
    options = protocol.arguments(__doc__)
    line = protocol.Line()
    clients = protocol.load(options.data)
    data = fedjax.InMemoryFederatedData(
        {str(k): {"x": rows.x, "y": rows.y.astype(np.int32)} for k, rows in enumerate(clients)}
    )
    fedjax.set_for_each_client_backend("jit")
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=EPOCHS),
    )
    features, labels = protocol.shape(clients)
    state = algorithm.init({"weight": jnp.zeros((features, labels)), "bias": jnp.zeros(labels)})
    rng = jax.random.PRNGKey(0)

    def run() -> None:
        nonlocal state, rng
        rng, use = jax.random.split(rng)
        keys = jax.random.split(use, len(clients))
        cohort = [(k, rows, keys[i]) for i, (k, rows) in enumerate(data.clients())]
        state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)

    def correct() -> float:
        weight, bias = (np.asarray(state.params[name]) for name in ("weight", "bias"))
        return protocol.accuracy(clients, weight, bias)

    run()
    run()
    line.ready(
        "FedJAX",
        version("fedjax"),
        sum(math.ceil(EPOCHS * len(rows.y) / BATCH) for rows in clients),
        f"jax {jax.__version__}, jit backend; batches cross epochs",
    )
    while line.wait(correct):
        began = time.perf_counter()
        run()
        line.took(time.perf_counter() - began)


if __name__ == "__main__":
    main()
