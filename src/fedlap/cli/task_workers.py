"""Ray workers of a command that trains many runs."""

import typer

from fedlap.cli import console
from fedlap.cli.threads import use_threads
from fedlap.experiments.workers import TaskWorkers
from fedlap.training.shards.cluster import ClusterSettings


def open_workers(
    context: typer.Context, workers: int | None, address: str | None, threads: int | None
) -> TaskWorkers | None:
    """Return workers that end with the command, or None if no option asks for them; set the threads.

    This process has as many threads as a worker, by default one, since the size of a stack depends on it.
    """
    if workers is None and address is None:
        use_threads(threads)
        return None
    use_threads(threads or 1)
    opened = TaskWorkers(ClusterSettings(workers, address), threads or 1, console.print_remark)
    context.call_on_close(opened.close)
    return opened
