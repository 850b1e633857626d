"""Named points at which a test ends a process, to show that a run survives it.

A point does nothing unless the environment variable FEDLAP_FAILPOINT names it: "server.merged" kills the
process when it gets there, "server.merged:3" at the third time.
"""

import os
import signal
from typing import Final

VARIABLE: Final = "FEDLAP_FAILPOINT"

# Every point, in the order of a round.
SERVER_POINTS: Final = (
    "server.setup.writing", "server.setup.written",
    "server.task.sending", "server.task.sent",
    "server.reply.received", "server.reply.writing", "server.reply.written", "server.reply.acknowledged",
    "server.cohort.writing", "server.cohort.written",
    "server.merge.starting", "server.merged",
    "server.checkpoint.writing", "server.checkpoint.written", "server.replies.removed",
    "server.score.writing", "server.score.written",
)  # fmt: skip
CLIENT_POINTS: Final = (
    "client.registered", "client.task.received",
    "client.trained", "client.state.writing", "client.state.written",
    "client.reply.writing", "client.reply.written", "client.reply.sending", "client.reply.sent",
    "client.tally.sending", "client.tally.sent",
    "client.model.writing", "client.model.written",
)  # fmt: skip
PEER_POINTS: Final = (
    "peer.setup.writing", "peer.setup.written", "peer.greeted",
    "peer.trained", "peer.published", "peer.model.received", "peer.mixing", "peer.mixed",
    "peer.checkpoint.writing", "peer.checkpoint.written", "peer.tally.writing", "peer.tally.written",
    "peer.model.writing", "peer.model.written",
)  # fmt: skip

_passed: dict[str, int] = {}


def pass_point(name: str) -> None:
    """Pass a named point; end the process by SIGKILL if the environment asks for it."""
    wanted, _, times = os.environ.get(VARIABLE, "").partition(":")
    if wanted != name:
        return
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] == int(times or 1):
        end_process()


def end_process() -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)
