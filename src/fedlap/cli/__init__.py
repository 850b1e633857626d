"""The command line."""

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, cast

import typer

from fedlap import __version__
from fedlap.cli import console
from fedlap.cli.algorithms import algorithms, cite
from fedlap.cli.data import describe, get, show
from fedlap.cli.graph import describe as describe_graph
from fedlap.cli.graph import draw, learn, make
from fedlap.cli.predict import export, predict
from fedlap.cli.report import report
from fedlap.cli.reproduce import reproduce
from fedlap.cli.results import results
from fedlap.cli.run import compare, run
from fedlap.cli.runs import resume, runs
from fedlap.cli.runs import show as show_run
from fedlap.cli.streams import OutputError, checked_streams
from fedlap.cli.sweep import sweep
from fedlap.cli.theory import theory
from fedlap.cli.tune import tune
from fedlap.errors import InputError, is_out_of_memory, shortened
from fedlap.experiments.session import StoppedError

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

# Exit codes beside 0 and 1; 1 says that a run diverged or a part of the work could not be done.
MISTAKE, INTERNAL, INTERRUPTED = 2, 70, 130
UNREAD = 141  # as of a program that ends by SIGPIPE: whoever read standard output has ended
LESS = "use fewer clients or rows, a smaller model or --batch, or a machine with more memory"
REPORT = "please report it; FEDLAP_DEBUG=1 shows the traceback"

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
    with checked_streams(), warnings.catch_warnings():
        warnings.showwarning = _say_warning
        code = _run(sys.argv[1:])
    sys.exit(code)


def _run(words: Sequence[str]) -> int:
    """The exit code of a command line; whatever happens, it is told in one line."""
    try:
        code = _invoke(words)
        print(end="", flush=True)  # what cannot be written is found here, not after the end
        return code
    except StoppedError as stopped:
        console.remark(f"{stopped}; the same command goes on")
        return INTERRUPTED
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except InputError as error:
        return _fail(str(error), MISTAKE)
    except COMMAND_ERROR as error:
        return _fail(error.format_message(), MISTAKE)
    except OutputError as error:
        return UNREAD if error.closed else _fail(f"standard output cannot be written ({error})", MISTAKE)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None and not is_out_of_memory(error):
            return _fail(f"{str(error.filename)!r} cannot be used ({error.strerror}); name another", MISTAKE)
        if os.environ.get("FEDLAP_DEBUG"):
            raise
        lacking, message = is_out_of_memory(error), f"{type(error).__name__}: {error}"
    # Outside of the handler, so that what the failed frames held is free again.
    if lacking:
        return _fail(f"out of memory ({shortened(message, 200)}); {LESS}", MISTAKE)
    return _fail(f"internal error: {shortened(message, 300)}; {REPORT}", INTERNAL)


def _invoke(words: Sequence[str]) -> int:
    """Parse the words and run their command; 0, or the exit code that the command chose."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("fedlap", list(words)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _say_warning(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    console.remark(f"warning: {' '.join(str(message).split())}")


def _fail(message: str, code: int) -> int:
    console.remark("error: " + shortened(" ".join(message.split())))
    return code
