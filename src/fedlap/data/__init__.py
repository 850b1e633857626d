"""Data sets by name."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fedlap.data.cifar10 import DISTRIBUTION as CIFAR10
from fedlap.data.cifar10 import cifar10
from fedlap.data.digits import digits
from fedlap.data.distribution import Distribution
from fedlap.data.federation import Federation
from fedlap.data.har import DISTRIBUTION as HAR
from fedlap.data.har import har
from fedlap.data.mnist import DISTRIBUTION as MNIST
from fedlap.data.mnist import mnist
from fedlap.data.partition import Labels, Partition
from fedlap.data.standardize import Scaling
from fedlap.data.synthetic import Synthetic, synthetic
from fedlap.data.table import Table
from fedlap.data.user_files import file
from fedlap.data.vehicle import DISTRIBUTION as VEHICLE
from fedlap.data.vehicle import vehicle
from fedlap.errors import InputError, unknown
from fedlap.graph import Graph

TEST_SHARE: Final = 0.25


@dataclass(frozen=True)
class Source:
    """A data set that can be loaded by name.

    make: gives its rows, or a federation with a graph, from its settings.
    scale: how features are scaled unless one says otherwise.
    about: what it is, in a line.
    partition: how its rows are dealt out unless one says otherwise; None where they have clients by nature.
    distribution: its official files, where it has any.
    citation, terms: what its makers ask for.
    """

    make: Callable[..., Table | Synthetic]
    scale: Scaling
    about: str
    partition: Partition | None = None
    distribution: Distribution | None = None
    citation: str = ""
    terms: str = ""

    @property
    def tabular(self) -> bool:
        """Whether it is a table of rows, to be cut and split."""
        return self.make is not synthetic


SOURCES: Final[dict[str, Source]] = {
    "har": Source(
        har,
        "pooled",
        "what 30 people were doing, from their phones' sensors: 10,299 rows, 561 features, 6 activities",
        distribution=HAR,
        citation="D. Anguita, A. Ghio, L. Oneto, X. Parra and J. L. Reyes-Ortiz. A Public Domain Dataset for "
        "Human Activity Recognition Using Smartphones. ESANN 2013.",
        terms="Cite the paper; the README with the data forbids commercial use.",
    ),
    "vehicle": Source(
        vehicle,
        "pooled",
        "two kinds of vehicle, heard and felt by 23 sensors: 48,303 rows, 100 features",
        distribution=VEHICLE,
        citation="M. F. Duarte and Y. H. Hu. Vehicle Classification in Distributed Sensor Networks. Journal "
        "of Parallel and Distributed Computing 64(7), 2004.",
        terms="None stated; cite the paper.",
    ),
    "mnist": Source(
        mnist,
        "pooled",
        "70,000 handwritten digits of 28×28 pixels, two labels a client",
        partition=Labels(clients=100, labels_per_client=2, spread=0.555, rows=61_866),
        distribution=MNIST,
        citation="Y. LeCun, L. Bottou, Y. Bengio and P. Haffner. Gradient-Based Learning Applied to Document "
        "Recognition. Proceedings of the IEEE 86(11), 1998.",
        terms="CC BY-SA 3.0 (Y. LeCun and C. Cortes).",
    ),
    "cifar10": Source(
        cifar10,
        "pooled",
        "60,000 pictures of 32×32 pixels in colour, three labels a client",
        partition=Labels(clients=20, labels_per_client=3, spread=0.365, rows=54_572),
        distribution=CIFAR10,
        citation="A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. Technical report, "
        "University of Toronto, 2009.",
        terms="None stated; cite the report.",
    ),
    "digits": Source(
        digits,
        "pooled",
        "1,797 handwritten digits of 8×8 pixels, few labels a client (embedded)",
        partition=Labels(clients=20, labels_per_client=3, spread=1.0),
        citation="E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. UCI Machine Learning "
        "Repository, 1998.",
        terms="CC BY 4.0.",
    ),
    "synthetic": Source(synthetic, "none", "clients whose true models are smooth on a known graph (made up)"),
    "file": Source(file, "pooled", "rows of one's own .csv, .parquet or .npz file"),
}


def load(
    name: str,
    seed: int = 0,
    *,
    scale: Scaling | None = None,
    partition: Partition | None = None,
    test_share: float | None = None,
    **settings: Any,
) -> Federation:
    """The data set of this name, cut into clients and split by `seed`, with its own settings.

    `scale`, `partition` and `test_share` (0.25) are the data set's usual ones where they are not given.
    """
    return load_with_graph(name, seed, scale=scale, partition=partition, test_share=test_share, **settings)[0]


def load_with_graph(
    name: str,
    seed: int = 0,
    *,
    scale: Scaling | None = None,
    partition: Partition | None = None,
    test_share: float | None = None,
    scarce: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[Federation, Graph | None]:
    """The data set, and the graph that its clients' true models are smooth on where that is known.

    `scarce` are the settings of `Federation.scarce`; None leaves all rows.
    """
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES, field="name")
    source = SOURCES[name]
    known = [name for name in inspect.signature(source.make).parameters if name != "seed"]
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of data {name!r}", setting, known, field=setting)
    if source.tabular:
        table = source.make(**settings)
        assert isinstance(table, Table)
        share = TEST_SHARE if test_share is None else test_share
        federation, graph = Federation.from_table(table, partition or source.partition, share, seed), None
    elif partition is None and test_share is None:
        made = source.make(seed=seed, **settings)
        assert isinstance(made, Synthetic)
        federation, graph = made.federation, made.graph
    else:
        raise InputError(
            f"data {name!r} comes with its own clients and test rows; leave partition and test_share",
            field="data",
        )
    if scarce is not None:
        for setting in scarce:
            if setting not in (fields := ("share_of_clients", "keep", "cut_test")):
                raise unknown("setting of scarce", setting, fields, field=setting)
        federation = federation.scarce(**scarce, seed=seed)
    return federation.scaled(source.scale if scale is None else scale), graph


__all__ = [
    "SOURCES",
    "TEST_SHARE",
    "Source",
    "Synthetic",
    "load",
    "load_with_graph",
    "synthetic",
]
