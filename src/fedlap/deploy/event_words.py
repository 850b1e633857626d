"""The words of the log: events, reasons and names of numbers. The log refuses all others."""

from enum import StrEnum

from fedlap.deploy.transport import ExitCode

# Events and their sentences in the readable form.
EVENTS = {
    # The server
    "listening": "The process listens",
    "run-started": "The run starts",
    "run-resumed": "The run resumes",
    "round-decided": "The replies that count are decided",
    "round-merged": "The replies are merged",
    "round-abandoned": "The round is abandoned",
    "scored": "The models are scored",
    "not-scored": "The models are not scored",
    "graph-changed": "The graph changes",
    "register-changed": "The register of certificates has changed",
    "run-finished": "The run is finished",
    "run-stopped": "The run stops",
    # A client, as the server sees it
    "connected": "{name} is connected",
    "registered": "{name} has registered its rows",
    "answered": "{name} has answered",
    "reply-lost": "The stored reply of {name} is lost or damaged; it is asked for again",
    "declined": "{name} declines the round",
    "left-out": "{name} is left out of the round",
    "refused": "A message of {name} is refused",
    "stranger": "A message of an unknown client is refused",
    "late": "{name} is silent",
    "awaited": "The run waits for {name}",
    "away": "{name} leaves for now",
    "returned": "{name} is back",
    "joined": "{name} joins",
    "left": "{name} leaves",
    "ejected": "{name} is ejected",
    "not-changed": "{name} cannot join or leave",
    "change-refused": "A change of the roster is refused",
    # A client, as it sees itself
    "dialled": "The server answers",
    "unreachable": "The server does not answer; trying again",
    "sent": "The upload is sent",
    "round-declined": "The client declines the round",
    "model-written": "The model is written",
    "model-not-written": "The model is not written; the earlier one remains",
    # A peer
    "stands-in": "{name} is late: its last model stands in",
    "excluded": "{name} has removed its edge to this peer",
    "lost": "{name} is asked again later",
    "rejoined": "The peer continues in its neighbours' round",
    "neighbour-finished": "{name} has done its last round",
    "round-finished": "The round is finished",
    "forgotten-edge": "{name} is silent for too long: the edge is removed",
    # Both
    "waiting": "Still waiting",
    "certificate-expiring": "The certificate expires soon; renew it",
    "certificate-renewed": "The renewed certificate is in use",
    "failed": "The process ends with an error",
    "log-gap": "Events are missing here: the log could not be written",
}

# Numbers and their units in the readable form.
NUMBERS = {
    **dict.fromkeys(
        ("clients", "replies", "minimum", "attempt", "code", "port", "version", "issue", "rounds_behind"), ""
    ),
    **dict.fromkeys(("rows", "test_rows", "rounds", "events", "parameters", "processes"), ""),
    **dict.fromkeys(("bytes", "bytes_up", "bytes_down", "free_bytes"), "bytes"),
    **dict.fromkeys(("seconds", "silent_seconds", "round_seconds", "deadline"), "s"),
    **dict.fromkeys(
        ("train_loss", "loss", "accuracy", "rmse", "mae", "r2", "objective", "norm", "limit"), ""
    ),
    "days": "days",
}
PLAIN_NUMBERS = ("rounds_behind", "code", "port", "version", "issue")  # without separators of thousands


class EventReason(StrEnum):
    """Reasons of events. A reason never contains the message of an error, which may quote a row."""

    # The server's view of a client
    SILENT = "silent until the deadline"
    SHAPE = "wrong shapes"
    ROWS = "another number of rows than registered"
    NOT_FINITE = "NaN or infinity"
    NORM = "norm above the limit"
    TOO_LONG = "message too long"
    MALFORMED = "message truncated or malformed"
    REPLAYED = "reply to an earlier round"
    UNASKED = "reply that nobody asked for"
    ROSTER = "for another roster"
    DECLINED = "declined by the client"
    AWAY = "left for now"
    LEFT = "left for good"
    EJECTED = "ejected"
    # Errors that waiting does not cure, one per exit code
    OTHER_AUTHORITY = "certificate of another authority"
    EXPIRED = "certificate expired or not valid yet"
    WRONG_NAME = "certificate for another host"
    NO_ACCESS = "no access rule: unknown, ejected or revoked"
    OTHER_VERSION = "other version"
    OTHER_PLAN = "other plan, data or graph"
    STORAGE = "disk full or read-only"
    NO_ANSWER = "no answer of the server"
    # The rest
    UNREACHABLE = "not reachable"
    DATA = "data that cannot be used"

    @staticmethod
    def from_code(code: ExitCode) -> "EventReason":
        """Return the reason of an exit code."""
        return EventReason.NO_ACCESS if code is ExitCode.REFUSED else EventReason[code.name]
