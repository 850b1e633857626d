"""The command line `fedlap`."""

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, cast

import typer

from fedlap import __version__
from fedlap.cli import console
from fedlap.cli.commands.catalogue import algorithms_command, cite_command
from fedlap.cli.commands.data import (
    data_describe_command,
    data_get_command,
    data_list_command,
    data_make_command,
    data_write_command,
)
from fedlap.cli.commands.deploy import (
    admit_command,
    check_command,
    client_command,
    eject_command,
    peer_command,
    serve_command,
    status_command,
)
from fedlap.cli.commands.graph import (
    graph_describe_command,
    graph_draw_command,
    graph_learn_command,
    graph_make_command,
)
from fedlap.cli.commands.join import join_command
from fedlap.cli.commands.keys import (
    keys_authority_command,
    keys_install_command,
    keys_request_command,
    keys_revoke_command,
    keys_server_command,
    keys_show_command,
    keys_sign_command,
)
from fedlap.cli.commands.paper import reproduce_command, results_command, theory_command
from fedlap.cli.commands.plan import plan_command
from fedlap.cli.commands.results import (
    clients_command,
    export_command,
    predict_command,
    report_command,
    rm_command,
    runs_command,
    show_command,
)
from fedlap.cli.commands.train import (
    compare_command,
    resume_command,
    run_command,
    sweep_command,
    tune_command,
)
from fedlap.cli.exit_codes import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED, EXIT_USAGE
from fedlap.cli.help_pages import HelpCommand, HelpGroup
from fedlap.cli.plugins import accept_plugins
from fedlap.cli.streams import OutputError, check_streams
from fedlap.cli.usage_errors import describe_usage_error
from fedlap.deploy.transport import PermanentError
from fedlap.errors import InputError, StoppedError, is_out_of_memory, shorten

COMMANDS: dict[str, dict[str, Callable[..., None]]] = {  # by heading of `fedlap --help`
    "Train": {
        "run": run_command,
        "compare": compare_command,
        "sweep": sweep_command,
        "tune": tune_command,
        "resume": resume_command,
        "plan": plan_command,
    },
    "Results": {
        "runs": runs_command,
        "show": show_command,
        "clients": clients_command,
        "report": report_command,
        "export": export_command,
        "predict": predict_command,
        "join": join_command,
        "rm": rm_command,
    },
    "Between machines": {
        "serve": serve_command,
        "client": client_command,
        "peer": peer_command,
        "check": check_command,
        "status": status_command,
        "admit": admit_command,
        "eject": eject_command,
    },
    "Paper": {
        "reproduce": reproduce_command,
        "results": results_command,
        "theory": theory_command,
    },
    "Catalogue": {
        "algorithms": algorithms_command,
        "cite": cite_command,
    },
}
DATA_COMMANDS: dict[str, Callable[..., None]] = {
    "list": data_list_command,
    "get": data_get_command,
    "describe": data_describe_command,
    "make": data_make_command,
    "write": data_write_command,
}
GRAPH_COMMANDS: dict[str, Callable[..., None]] = {
    "make": graph_make_command,
    "describe": graph_describe_command,
    "learn": graph_learn_command,
    "draw": graph_draw_command,
}
KEYS_COMMANDS: dict[str, Callable[..., None]] = {
    "authority": keys_authority_command,
    "server": keys_server_command,
    "request": keys_request_command,
    "sign": keys_sign_command,
    "install": keys_install_command,
    "revoke": keys_revoke_command,
    "show": keys_show_command,
}


def _unwrap_docstring(command: Callable[..., None]) -> str:
    """Return a docstring with one line per paragraph, so that `--help` wraps it to the terminal."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


app = typer.Typer(
    cls=HelpGroup,
    help="Federated multi-task learning with Laplacian regularisation.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(
    cls=HelpGroup, help="List, download, describe and make data sets.", rich_markup_mode="rich"
)
graph_app = typer.Typer(
    cls=HelpGroup, help="Build, describe, learn and draw graphs.", rich_markup_mode="rich"
)
keys_app = typer.Typer(
    cls=HelpGroup, help="Create, sign and revoke certificates of deployments.", rich_markup_mode="rich"
)
for _panel, _commands in COMMANDS.items():
    for _name, _command in _commands.items():
        app.command(_name, cls=HelpCommand, help=_unwrap_docstring(_command), rich_help_panel=_panel)(
            accept_plugins(_command)
        )
for _name, _command in DATA_COMMANDS.items():
    data_app.command(_name, cls=HelpCommand, help=_unwrap_docstring(_command))(accept_plugins(_command))
for _name, _command in GRAPH_COMMANDS.items():
    graph_app.command(_name, cls=HelpCommand, help=_unwrap_docstring(_command))(accept_plugins(_command))
for _name, _command in KEYS_COMMANDS.items():
    keys_app.command(_name, cls=HelpCommand, help=_unwrap_docstring(_command))(_command)
app.add_typer(keys_app, name="keys", rich_help_panel="Between machines")
app.add_typer(data_app, name="data", rich_help_panel="Catalogue")
app.add_typer(graph_app, name="graph", rich_help_panel="Catalogue")

COMPLETION_VARIABLE = "_FEDLAP_COMPLETE"  # set by the scripts of --install-completion
MEMORY_ADVICE = "use fewer clients or rows, a smaller model or --batch, or a machine with more memory"
REPORT_ADVICE = "please report it; FEDLAP_DEBUG=1 shows the traceback"

# The base class of usage errors: click's ClickException, which newer releases of typer bundle under another
# name.
COMMAND_ERROR = cast(type[typer.BadParameter], typer.BadParameter.__mro__[2])


@app.callback(invoke_without_command=True)
def _print_version_or_help(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", metavar="", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    _print_help(context)


@data_app.callback(invoke_without_command=True)
@graph_app.callback(invoke_without_command=True)
@keys_app.callback(invoke_without_command=True)
def _print_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        context.get_help()  # prints it, since typer formats help with rich


def main() -> None:
    """Run the command line and exit; a user's error prints one line and exits with code 2."""
    if COMPLETION_VARIABLE in os.environ:  # a shell asks for completions, and typer answers and exits
        app(prog_name="fedlap")
    with check_streams(), warnings.catch_warnings():
        warnings.showwarning = _print_warning
        code = run_command_line(sys.argv[1:])
    sys.exit(code)


def _name_places(message: str, words: Sequence[str]) -> str:
    """Return an error with the name under which columns of places were set; they belong to the data."""
    is_of_graph = any("graph.places=" in word for word in words)
    return message.replace("data.places:", "graph.places:", 1) if is_of_graph else message


def run_command_line(words: Sequence[str]) -> int:
    """Run a command line and return its exit code; every failure prints one line."""
    try:
        code = _invoke_command(words)
        print(end="", flush=True)  # a full disk is found here and not at exit
        return code
    except StoppedError as stopped:
        console.print_remark(f"{stopped}; repeat the command to resume")
        return EXIT_INTERRUPTED
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED)
    except InputError as error:
        return _fail(_name_places(str(error), words), EXIT_USAGE)
    except PermanentError as error:
        return _fail(str(error), int(error.code))
    except COMMAND_ERROR as error:
        return _fail(describe_usage_error(error), EXIT_USAGE)
    except OutputError as error:
        if error.closed:
            return EXIT_PIPE_CLOSED
        return _fail(f"standard output cannot be written ({error}); redirect it elsewhere", EXIT_USAGE)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None and not is_out_of_memory(error):
            return _fail(
                f"{str(error.filename)!r} cannot be used ({error.strerror}); choose another path", EXIT_USAGE
            )
        if os.environ.get("FEDLAP_DEBUG"):
            raise
        out_of_memory, message = is_out_of_memory(error), f"{type(error).__name__}: {error}"
    # This is outside the handler, so that the memory of the failed frames is free again.
    if out_of_memory:
        return _fail(f"out of memory ({shorten(message, 200)}); {MEMORY_ADVICE}", EXIT_USAGE)
    return _fail(f"internal error: {shorten(message, 300)}; {REPORT_ADVICE}", EXIT_INTERNAL)


@cache
def build_commands() -> Any:
    """Build click's tree of commands, once per process."""
    return typer.main.get_command(app)


def _invoke_command(words: Sequence[str]) -> int:
    """Parse the words, run their command and return its exit code."""
    command = build_commands()
    try:
        with command.make_context("fedlap", list(words)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _print_warning(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    console.print_remark(f"warning: {' '.join(str(message).split())}")


def _fail(message: str, code: int) -> int:
    console.print_remark("error: " + shorten(" ".join(message.split())))
    return code
