"""The command that estimates the cost of a training: plan."""

from typing import Annotated, Any

import typer

from fedlap.cli.options import (
    DATA_PANEL,
    GRAPH_PANEL,
    RESULT_OPTIONS,
    TRAINING_OPTIONS,
    AlgorithmOption,
    JsonOption,
    add_options,
)

CLUSTER_PANEL = "Machines"
METHOD_OPTIONS = ("model", "sample", "batch", "lr", "local_steps", "local_epochs")


@add_options({name: TRAINING_OPTIONS[name] for name in METHOD_OPTIONS}, {"set": RESULT_OPTIONS["set"]})
def plan_command(
    clients: Annotated[
        str,
        typer.Option(metavar="LIST", help="Numbers of clients, e.g. 10000,1e6.", rich_help_panel=DATA_PANEL),
    ] = "10000,1e6,1e8",
    rows: Annotated[
        int,
        typer.Option(
            metavar="N", help="Mean number of training rows per client.", min=1, rich_help_panel=DATA_PANEL
        ),
    ] = 20,
    test_rows: Annotated[
        int,
        typer.Option(
            metavar="N", help="Mean number of test rows per client.", min=0, rich_help_panel=DATA_PANEL
        ),
    ] = 5,
    features: Annotated[
        int, typer.Option(metavar="N", help="Number of features.", min=1, rich_help_panel=DATA_PANEL)
    ] = 10,
    labels: Annotated[
        int,
        typer.Option(
            metavar="N", help="Number of classes; 0: one real target.", min=0, rich_help_panel=DATA_PANEL
        ),
    ] = 3,
    graph: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Where neighbours are: clusters, ring, geometric (as in data make) or random.",
            rich_help_panel=GRAPH_PANEL,
        ),
    ] = "random",
    degree: Annotated[
        int, typer.Option(metavar="N", help="Mean number of neighbours.", min=0, rich_help_panel=GRAPH_PANEL)
    ] = 10,
    algorithm: AlgorithmOption = "fedu",
    workers: Annotated[
        int,
        typer.Option(
            metavar="N", help="Number of workers of the engine ray.", min=1, rich_help_panel=CLUSTER_PANEL
        ),
    ] = 1,
    machines: Annotated[
        int, typer.Option(metavar="N", help="Number of machines.", min=1, rich_help_panel=CLUSTER_PANEL)
    ] = 1,
    memory: Annotated[
        float | None,
        typer.Option(
            metavar="GB", help="Memory of a machine. Default: of this one.", rich_help_panel=CLUSTER_PANEL
        ),
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            metavar="GB/S",
            help="Bandwidth between machines. Default: as measured on this one.",
            rich_help_panel=CLUSTER_PANEL,
        ),
    ] = None,
    latency: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            help="Time of a message and its answer. Default: as measured on this machine.",
            rich_help_panel=CLUSTER_PANEL,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Threads of the measured process.", min=1, rich_help_panel=CLUSTER_PANEL
        ),
    ] = None,
    json_: JsonOption = False,
    **options: Any,
) -> None:
    """Estimate the memory, the traffic and the time of a training.

    No data are needed. A small training of the same kind runs for some seconds on this machine, and its costs
    are scaled to each number of clients. The file plan.toml of a deployment is something else: see
    `fedlap serve`.

    Example: fedlap plan --clients 1e4,1e6,1e8 --sample 0.01 --workers 64 --machines 8 --bandwidth 1.25
    """
    from fedlap.cli.plan import estimate_costs

    values = {
        "clients": clients,
        "rows": rows,
        "test_rows": test_rows,
        "features": features,
        "labels": labels,
        "graph": graph,
        "degree": degree,
        "algorithm": algorithm,
        "workers": workers,
        "machines": machines,
        "memory": memory,
        "bandwidth": bandwidth,
        "latency": latency,
        "threads": threads,
        "json": json_,
    }
    estimate_costs(values | options)
