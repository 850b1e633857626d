"""A plugin with a method, a network and a data set, as a file and as an installed package."""

from fedlap.experiments import plugins

PLUGIN = '''
"""Local training with a pull to zero, a network with one hidden layer, and a table of three clients."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import fedlap as fl
from fedlap.data import Source
from fedlap.data.table import Table
from fedlap.models import Network, module


@dataclass(frozen=True)
class Shrunk(fl.Local):
    """Local training whose models are pulled to zero."""

    shrinkage: float = 0.1

    def personal_models(self, server, private, clients):
        return (1 - self.shrinkage) * fl.Local.personal_models(self, server, private, clients)


@dataclass(frozen=True)
class Narrow:
    """A network with one hidden layer of tanh."""

    width: int = 3
    l2: float = 0.0

    def build(self, inputs: tuple[int, ...], outputs: int) -> Network:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            hidden = nn.Linear(math.prod(inputs), self.width)
            net = nn.Sequential(nn.Flatten(), hidden, nn.Tanh(), nn.Linear(self.width, outputs))
        return module(net).build(inputs, outputs)


def load_coins(rows: int = 24) -> Table:
    """Two features whose sum decides the label, for three clients."""
    x = np.random.default_rng(0).normal(size=(rows, 2))
    y = (x.sum(1) > 0).astype(int)
    return Table.of((x, y), np.resize(["a", "b", "c"], rows), labels=["tail", "head"])


fl.ALGORITHMS["shrunk"] = Shrunk
fl.models.MODELS["narrow"] = Narrow
fl.data.SOURCES["coins"] = Source(load_coins, "none", "coins of three clients")
'''

ENTRY_POINTS = """
[fedlap.algorithms]
packed = {module}:Shrunk
broken = {module}:Missing
[fedlap.models]
packed = {module}:Narrow
[fedlap.data]
packed = {module}:PACKED
"""


def write_package(folder, module="coin_methods"):
    """Write an installed package, `coin-methods` 1.2, with working entry points and a broken one."""
    text = PLUGIN.partition('fl.ALGORITHMS["shrunk"]')[0]
    source = 'PACKED = Source(load_coins, "none", "coins of three clients")'
    (folder / f"{module}.py").write_text(f"{text}{source}\n")
    about = folder / "coin_methods-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: coin-methods\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS.format(module=module))


def snapshot_registries():
    """Return a function that removes every plugin that is loaded after this call."""
    registries = {section: dict(registry) for section, registry in plugins.REGISTRIES.items()}
    owners = dict(plugins._owners)

    def restore():
        for section, entries in registries.items():
            plugins.REGISTRIES[section].clear()
            plugins.REGISTRIES[section].update(entries)
        plugins._owners.clear()
        plugins._owners.update(owners)

    return restore
