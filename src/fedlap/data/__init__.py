"""Data sets that can be loaded by name."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fedlap.data.cifar10 import CIFAR10_DISTRIBUTION, load_cifar10
from fedlap.data.colorado import COLORADO_DISTRIBUTION, load_colorado
from fedlap.data.connected_table import ConnectedTable
from fedlap.data.digits import load_digits
from fedlap.data.distribution import Distribution
from fedlap.data.federation import Federation
from fedlap.data.federation_folder import FederationFolder, open_folder, write_federation
from fedlap.data.folder_writing import store_federation
from fedlap.data.har import HAR_DISTRIBUTION, load_har
from fedlap.data.large_synthetic import LargeSynthetic
from fedlap.data.mnist import MNIST_DISTRIBUTION, load_mnist
from fedlap.data.partition import Labels, Partition
from fedlap.data.radon import load_radon
from fedlap.data.standardize import Scaling
from fedlap.data.synthetic_clients import Synthetic, synthetic
from fedlap.data.table import Table
from fedlap.data.user_files import load_file
from fedlap.data.vehicle import VEHICLE_DISTRIBUTION, load_vehicle
from fedlap.errors import InputError, unknown_name_error
from fedlap.graph.graph import Graph

TEST_SHARE: Final = 0.25


@dataclass(frozen=True)
class Source:
    """A data set that can be loaded by name.

    make: builds its table, alone or with the known graph of its clients, or opens its folder, from settings.
    scale: the default scaling of features.
    about: a description in one line.
    partition: the default partition; None if its rows have natural clients.
    graph: a description of the known graph of its clients, if there is one.
    is_split: True if its clients and test rows are fixed, whatever the seed.
    is_generated: True if its clients are generated from the seed, so that they differ between seeds.
    distribution: its official files, if any.
    citation, terms: the citation and the terms of use of its authors.
    """

    make: Callable[..., Table | ConnectedTable | Synthetic | FederationFolder]
    scale: Scaling
    about: str
    partition: Partition | None = None
    graph: str = ""
    is_split: bool = False
    is_generated: bool = False
    distribution: Distribution | None = None
    citation: str = ""
    terms: str = ""

    @property
    def is_tabular(self) -> bool:
        """True if its rows are to be partitioned and split; False if they are split, or drawn by the seed."""
        return not self.is_split and "seed" not in inspect.signature(self.make).parameters


SOURCES: Final[dict[str, Source]] = {
    "har": Source(
        load_har,
        "pooled",
        "activities of 30 people, from their phones' sensors: 10,299 rows, 561 features, 6 activities",
        distribution=HAR_DISTRIBUTION,
        citation="D. Anguita, A. Ghio, L. Oneto, X. Parra and J. L. Reyes-Ortiz. A Public Domain Dataset for "
        "Human Activity Recognition Using Smartphones. ESANN 2013.",
        terms="Cite the paper; the README with the data forbids commercial use.",
    ),
    "vehicle": Source(
        load_vehicle,
        "pooled",
        "two kinds of vehicle, measured by 23 sensors: 48,303 rows, 100 features",
        distribution=VEHICLE_DISTRIBUTION,
        citation="M. F. Duarte and Y. H. Hu. Vehicle Classification in Distributed Sensor Networks. Journal "
        "of Parallel and Distributed Computing 64(7), 2004.",
        terms="None stated; cite the paper.",
    ),
    "mnist": Source(
        load_mnist,
        "pooled",
        "70,000 handwritten digits of 28×28 pixels, two labels per client",
        partition=Labels(clients=100, labels_per_client=2, spread=0.555, rows=61_866),
        distribution=MNIST_DISTRIBUTION,
        citation="Y. LeCun, L. Bottou, Y. Bengio and P. Haffner. Gradient-Based Learning Applied to Document "
        "Recognition. Proceedings of the IEEE 86(11), 1998.",
        terms="CC BY-SA 3.0 (Y. LeCun and C. Cortes).",
    ),
    "cifar10": Source(
        load_cifar10,
        "pooled",
        "60,000 colour images of 32×32 pixels, three labels per client",
        partition=Labels(clients=20, labels_per_client=3, spread=0.365, rows=54_572),
        distribution=CIFAR10_DISTRIBUTION,
        citation="A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. Technical report, "
        "University of Toronto, 2009.",
        terms="None stated; cite the report.",
    ),
    "digits": Source(
        load_digits,
        "pooled",
        "1,797 handwritten digits of 8×8 pixels, few labels per client (embedded)",
        partition=Labels(clients=20, labels_per_client=3, spread=1.0),
        citation="E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. UCI Machine Learning "
        "Repository, 1998.",
        terms="CC BY 4.0.",
    ),
    "radon": Source(
        load_radon,
        "pooled",
        "radon in 919 houses of 85 counties of Minnesota, with the borders of the counties (embedded)",
        graph="borders of the counties",
        citation="P. N. Price, A. V. Nero and A. Gelman. Bayesian Prediction of Mean Indoor Radon "
        "Concentrations for Minnesota Counties. Health Physics 71(6), 1996. A. Gelman and J. Hill. Data "
        "Analysis Using Regression and Multilevel/Hierarchical Models. Cambridge University Press, 2007.",
        terms="None stated; cite the paper and the book.",
    ),
    "colorado": Source(
        load_colorado,
        "pooled",
        "monthly maximum temperatures at 375 stations in Colorado, 12 months per station for training",
        graph="the five nearest stations by place and height",
        distribution=COLORADO_DISTRIBUTION,
        citation="D. Nychka, R. Furrer, J. Paige and S. Sain. fields: Tools for Spatial Data. R package "
        "version 14.1, 2022. doi:10.5065/D6W957CT.",
        terms="GPL, version 2 or later (the package fields).",
    ),
    "synthetic": Source(
        synthetic,
        "none",
        "generated clients whose true models are smooth on a known graph",
        graph="the graph on which the true models are smooth",
        is_generated=True,
    ),
    "file": Source(load_file, "pooled", "rows of a .csv, .parquet or .npz file"),
    "folder": Source(
        open_folder,
        "none",
        "rows of a folder that `fedlap data make` or `fedlap data write` wrote",
        graph="the graph in the folder",
        is_split=True,
    ),
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
    """Load a data set by name, with its settings; `seed` draws the partition and the test rows.

    `scale`, `partition` and `test_share` default to those of the data set; `test_share` to 0.25.
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
    """Load a data set, and the known graph of its clients; None without one, or with another partition.

    `scarce` are the settings of `Federation.scarce`; None retains all rows.
    """
    if name not in SOURCES:
        raise unknown_name_error("data set", name, SOURCES, field="name")
    source = SOURCES[name]
    known = [name for name in inspect.signature(source.make).parameters if name != "seed"]
    for setting in settings:
        if setting not in known:
            raise unknown_name_error(f"setting of data {name!r}", setting, known, field=setting)
    if not source.is_tabular:
        if partition is not None or test_share is not None:
            raise InputError(
                f"data {name!r} has fixed clients and test rows; remove partition and test_share",
                field="data",
            )
        settings |= {} if source.is_split else {"seed": seed}
    data = source.make(**settings)
    partition = partition or source.partition
    graph: Graph | None
    if isinstance(data, FederationFolder):
        federation, graph = data.open(), data.known_graph
    else:
        table, connected = (data, None) if isinstance(data, Table) else (data.table, data.graph)
        share = TEST_SHARE if test_share is None else test_share
        federation = Federation.from_table(table, partition, share, seed)
        graph = connected if partition is None else None  # A partition creates other clients.
    if scarce is not None:
        for setting in scarce:
            if setting not in (fields := ("share_of_clients", "keep", "cut_test")):
                raise unknown_name_error("setting of scarce", setting, fields, field=setting)
        federation = federation.scarce(**scarce, seed=seed)
    return federation.standardize(source.scale if scale is None else scale), graph


__all__ = [
    "SOURCES",
    "TEST_SHARE",
    "ConnectedTable",
    "FederationFolder",
    "LargeSynthetic",
    "Source",
    "Synthetic",
    "load",
    "load_with_graph",
    "open_folder",
    "store_federation",
    "synthetic",
    "write_federation",
]
