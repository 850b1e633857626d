"""The command that lists algorithms: algorithms."""

import inspect

from rich.padding import Padding
from rich.text import Text

from fedlap.algorithms import ALGORITHMS
from fedlap.cli import console
from fedlap.cli.arguments import parse_algorithms
from fedlap.cli.settings_table import format_settings, summarise_docstring
from fedlap.cli.threads import use_threads
from fedlap.errors import UnsuitedError
from fedlap.experiments.experiment import Experiment, has_graph
from fedlap.experiments.prepare import Loader
from fedlap.report import format_bytes


def list_algorithms(name: str, data: str, model: str) -> None:
    """List algorithms and their settings, or explain those that are named."""
    if name:
        texts = [inspect.getdoc(ALGORITHMS[algorithm]) or "" for algorithm in parse_algorithms(name)]
        print("\n\n\n".join(texts))
        return
    use_threads(None)
    console.print_result(
        f"up, down: upload and download per sampled client, measured in the first round ({model} on {data})"
    )
    console.print_result("")
    loader = Loader()
    for algorithm, method in ALGORITHMS.items():
        up, down = _count_bytes(algorithm, data, model, loader)
        console.print_result(f"{algorithm:<14}{method.traits.kind:<12}up {up:<10}down {down}")
        graph = ["uses --graph"] if has_graph(algorithm) else []
        for text in (summarise_docstring(method), ", ".join(format_settings(method, "graph") + graph)):
            console.out.print(Padding(Text(text), (0, 0, 0, 4)))


def _count_bytes(algorithm: str, data: str, model: str, loader: Loader) -> list[str]:
    """Count the bytes per client in the first round of an algorithm."""
    description = {"algorithm": {"name": algorithm}, "data": {"name": data}, "model": {"name": model}}
    try:
        experiment = Experiment.of({**description, "rounds": 1, "evaluate_every": 0})
        result = experiment.run(loaded=loader.load(experiment))
    except UnsuitedError:
        return ["–", "–"]
    last, clients = result.scores[-1], len(result.federation.clients)
    return [format_bytes(number / clients) for number in (last.bytes_up, last.bytes_down)]
