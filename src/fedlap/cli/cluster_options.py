"""Options of the workers that train, on this machine or on a cluster."""

from typing import Annotated, Any

import typer

WORKERS_PANEL = "Workers"


def _build_number_option(help_text: str) -> Any:
    return Annotated[
        int | None, typer.Option(metavar="N", help=help_text, min=1, rich_help_panel=WORKERS_PANEL)
    ]


AddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Ray cluster to join, e.g. auto. Default: start Ray on this machine.",
        rich_help_panel=WORKERS_PANEL,
    ),
]
CLUSTER_OPTIONS: dict[str, tuple[Any, Any]] = {  # name: annotation and default
    "workers": (_build_number_option("Number of Ray workers. Default: one per GPU, or per core."), None),
    "address": (AddressOption, None),
}
# Without either option, a command that trains many runs trains in its own process.
STACK_WORKER_OPTIONS: dict[str, tuple[Any, Any]] = {
    "workers": (
        _build_number_option(
            "Train in N Ray workers, each a stack of runs. Default: in this process, or with --address one "
            "per GPU or core."
        ),
        None,
    ),
    "address": (AddressOption, None),
}
ENGINE_OPTIONS: dict[str, tuple[Any, Any]] = {
    "engine": (
        Annotated[
            str,
            typer.Option(
                metavar="NAME",
                help="Engine: stacked, one_by_one, or ray with clients on several workers.",
                rich_help_panel=WORKERS_PANEL,
            ),
        ],
        "stacked",
    ),
    **CLUSTER_OPTIONS,
}
