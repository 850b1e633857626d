"""Exit codes of all commands, what each one means, and what the user can do."""

from typing import Final, NamedTuple

from fedlap.deploy.transport import ExitCode

EXIT_SUCCESS, EXIT_FAILED, EXIT_USAGE, EXIT_INTERNAL, EXIT_INTERRUPTED = 0, 1, 2, 70, 130
EXIT_PIPE_CLOSED = 141  # as after SIGPIPE: the reader of standard output, e.g. `head`, has ended


class ExitMeaning(NamedTuple):
    """The meaning of an exit code, and advice."""

    meaning: str
    advice: str = ""


EXIT_CODES: Final[dict[int, ExitMeaning]] = {
    EXIT_SUCCESS: ExitMeaning("The command succeeded, or a signal stopped a server, client or peer."),
    EXIT_FAILED: ExitMeaning(
        "A run diverged, a part of the command failed, or a check failed that may succeed later.",
        "Read the message.",
    ),
    EXIT_USAGE: ExitMeaning(
        "An option, file or setting is wrong, or the memory is too small.",
        "Read the message: it states what to do.",
    ),
    ExitCode.OTHER_AUTHORITY: ExitMeaning(
        "A certificate is signed by another authority, or by none.",
        "Install certificates of one authority on both sides.",
    ),
    ExitCode.EXPIRED: ExitMeaning(
        "A certificate is expired or not valid yet.", "Renew it; compare the clocks."
    ),
    ExitCode.WRONG_NAME: ExitMeaning(
        "The server's certificate is for another host, or is not a server's.",
        "Use a host of the certificate, or `fedlap keys server --host`.",
    ),
    ExitCode.REFUSED: ExitMeaning(
        "The server does not admit the client: unknown, ejected or revoked.", "Ask the server's operator."
    ),
    ExitCode.OTHER_VERSION: ExitMeaning(
        "Versions of fedlap, of messages or of the checkpoint differ.", "Install the same version."
    ),
    ExitCode.OTHER_PLAN: ExitMeaning(
        "The plan, the data or the graph differ from those of the run.",
        "Restore them, or start a new run in another folder.",
    ),
    ExitCode.STORAGE: ExitMeaning("The disk is full or read-only.", "Make room."),
    ExitCode.NO_ANSWER: ExitMeaning(
        "Nobody has answered for as long as `--patience` allows.",
        "Start the client or peer again when the others run.",
    ),
    EXIT_INTERNAL: ExitMeaning(
        "An internal error.", "Report it; with FEDLAP_DEBUG=1 the command prints the traceback."
    ),
    EXIT_INTERRUPTED: ExitMeaning(
        "The command was interrupted (Ctrl-C).", "Repeat the command to resume a run."
    ),
    EXIT_PIPE_CLOSED: ExitMeaning("The reader of standard output, such as `head`, has ended."),
}
