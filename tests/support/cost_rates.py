"""Rates of an invented machine, with round numbers."""

from fedlap.costs.calibration import Rates
from fedlap.costs.growth import Growth
from fedlap.costs.method_sizes import MethodSizes
from fedlap.costs.shard_calibration import RayRates, ShardRates, ShardWork

RATES = Rates(
    draw=Growth(0.001, 1e-7, 1e-6),
    local=Growth(0.002, 0.0, 1e-5),
    merge=Growth(0.003, 0.0, 2e-6),
    shared_bytes=100e6,
    private_bytes=200e6,
    client_bytes=1_000.0,
    block_bytes=50e6,
    block_clients=100_000,
    roster_bytes=100.0,
    copy_rate=10e9,
    cores=4,
    loopback_rate=1e9,
    loopback_latency=1e-4,
    shards=ShardRates(
        ShardWork(0.001, 0.0, 2e-5),
        Growth(0.001, 1e-7, 1e-6),
        RayRates(Growth(0.005, 0.0, 2e-7), 400e6, 70e6),
    ),
)

# Of FedU with a linear model of 10 features and 3 classes.
SIZES = MethodSizes(132.0, 132.0, 132.0, 0.0, 132.0, 132.0, 0.0, 0.0)
