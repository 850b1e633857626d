"""Commands about graphs: make, describe, learn and draw."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedlap.cli.names import COLOUR_NAMES, LEARNER_NAMES
from fedlap.cli.options import (
    CLIENT_OPTIONS,
    DATA_OPTIONS,
    DATA_PANEL,
    GRAPH_PANEL,
    OUTPUT_PANEL,
    RESULT_OPTIONS,
    SEED_OPTIONS,
    TRAINING_OPTIONS,
    JsonOption,
    Options,
    add_options,
)

SOURCE_OPTIONS: Options = {
    "data": (
        Annotated[
            str | None,
            typer.Option(
                metavar="NAME",
                help="Data set whose clients are the vertices of --graph.",
                rich_help_panel=DATA_PANEL,
            ),
        ],
        None,
    ),
    "graph": (
        Annotated[
            str | None,
            typer.Option(
                metavar="NAME",
                help="Graph over clients, as in `fedlap run`. Replaces the graph of a run.",
                rich_help_panel=GRAPH_PANEL,
            ),
        ],
        None,
    ),
}
DESCRIPTION_OPTIONS: Options = {name: RESULT_OPTIONS[name] for name in ("set", "json")}
MIXING_OPTIONS: Options = {
    name: TRAINING_OPTIONS[name] for name in ("lr", "local_steps", "local_epochs", "strength")
}
GraphOrRunArgument = Annotated[
    Path | None,
    typer.Argument(metavar="GRAPH", help="Graph file (.csv, .npy, .npz, .mtx), or folder of a run."),
]
GraphFileArgument = Annotated[
    Path, typer.Argument(metavar="OUT", help="Graph file to write: .csv, .npz or .mtx.", show_default=False)
]
ModelsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN", help="Run whose models are compared with the graph.", rich_help_panel=GRAPH_PANEL
    ),
]


@add_options(
    DATA_OPTIONS, {"graph": TRAINING_OPTIONS["graph"]}, CLIENT_OPTIONS, SEED_OPTIONS, DESCRIPTION_OPTIONS
)
def graph_make_command(out: GraphFileArgument, **options: Any) -> None:
    """Build the graph of a run and write it to a file.

    The options are those of `fedlap run`. The graph is described as in `fedlap graph describe`.

    Example: fedlap graph make ring.csv --data digits --graph ring
    """
    from fedlap.cli.graph import make_graph

    make_graph(out, options)


@add_options(SOURCE_OPTIONS, MIXING_OPTIONS, CLIENT_OPTIONS, SEED_OPTIONS, DESCRIPTION_OPTIONS)
def graph_describe_command(
    graph_or_run: GraphOrRunArgument = None, models: ModelsOption = None, **options: Any
) -> None:
    """Describe a graph, its stable strengths, and how models fit it.

    The table shows how fast mixing alone brings models together, without local steps and with all clients
    sampled: the share of the slowest-decaying difference that is left after one round, and the rounds that
    halve it. No training is needed.

    Example: fedlap graph describe --data digits --graph ring
    """
    from fedlap.cli.graph import describe_graph

    describe_graph(graph_or_run, models, options)


def graph_learn_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)],
    out: GraphFileArgument,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME", help=f"Learning method: {', '.join(LEARNER_NAMES)}.", rich_help_panel=GRAPH_PANEL
        ),
    ] = "kernel",
    neighbours: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Approximate number of neighbours per client.",
            min=1,
            rich_help_panel=GRAPH_PANEL,
        ),
    ] = 5,
    as_json: JsonOption = False,
) -> None:
    """Learn a graph from the models of a run.

    Use a run of `local`: methods with a graph already pull the models of neighbours together. If the data set
    has a known graph, the average precision (area under the precision–recall curve) shows how well its edges
    are found. Random guesses reach about the fraction of pairs that are edges.

    Example: fedlap graph learn runs/digits-local-0123456789abcdef learned.csv
    """
    from fedlap.cli.graph import learn_from_run

    learn_from_run(run, out, method, neighbours, as_json)


@add_options(SOURCE_OPTIONS, CLIENT_OPTIONS, SEED_OPTIONS, {"set": RESULT_OPTIONS["set"]})
def graph_draw_command(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="[GRAPH] FIGURE", help="Graph as for describe, then the .png file to write."),
    ],
    models: ModelsOption = None,
    colour: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Colour clients by: {', '.join(COLOUR_NAMES)}.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    **options: Any,
) -> None:
    """Draw a graph with neighbours close together.

    Heavier edges are wider, and clients with more rows are larger. By default, colours show the test score
    of a run's models, accuracy or RMSE, or the number of rows if there are no models.

    Example: fedlap graph draw --data digits --graph ring ring.png
    """
    from fedlap.cli.graph import draw_source

    draw_source(paths, models, colour, options)
