"""The command line."""

import sys
from typing import Annotated, cast

import typer

from fedlap import __version__
from fedlap.cli import console
from fedlap.cli.data import describe, get, show
from fedlap.cli.graph import describe as describe_graph
from fedlap.cli.graph import draw, learn, make
from fedlap.cli.kept import resume, runs
from fedlap.cli.kept import show as show_run
from fedlap.cli.methods import algorithms, cite
from fedlap.cli.personal import export, predict
from fedlap.cli.report import report
from fedlap.cli.reproduce import reproduce
from fedlap.cli.results import results
from fedlap.cli.sweep import sweep
from fedlap.cli.theory import theory
from fedlap.cli.training import compare, run
from fedlap.cli.tune import tune
from fedlap.errors import InputError
from fedlap.keeping import StoppedError

app = typer.Typer(
    help="Federated multi-task learning with Laplacian regularisation.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Data sets: list, get, describe.", rich_markup_mode=None)
app.command()(run)
app.command()(compare)
app.command()(sweep)
app.command()(tune)
app.command()(reproduce)
app.command()(results)
app.command()(runs)
app.command("show")(show_run)
app.command()(resume)
app.command()(report)
app.command()(export)
app.command()(predict)
app.command()(theory)
app.command()(algorithms)
app.command()(cite)
data_app.command("list")(show)
data_app.command()(get)
data_app.command()(describe)
app.add_typer(data_app, name="data")
graph_app = typer.Typer(help="Graphs of clients: make, describe, learn, draw.", rich_markup_mode=None)
graph_app.command()(make)
graph_app.command("describe")(describe_graph)
graph_app.command()(learn)
graph_app.command()(draw)
app.add_typer(graph_app, name="graph")

INTERRUPTED = 130

# The base class of mistakes in a command line: click's ClickException, which newer releases of typer bring
# along under a name of their own.
COMMAND_ERROR = cast(type[typer.BadParameter], typer.BadParameter.__mro__[2])


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    _help_alone(context)


@data_app.callback(invoke_without_command=True)
@graph_app.callback(invoke_without_command=True)
def _help_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:  # typer turns Ctrl-C into this code
            _fail("interrupted", code)
    except StoppedError as stopped:
        console.remark(f"{stopped}; the same command goes on")
        code = INTERRUPTED
    except InputError as error:
        code = _fail(str(error), 2)
    except COMMAND_ERROR as error:
        code = _fail(error.format_message(), 2)
    except typer.Abort:
        code = _fail("interrupted", INTERRUPTED)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> int:
    console.remark("error: " + " ".join(message.split()))
    return code
