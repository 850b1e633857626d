"""Shards whose processes end at named points, once each."""

import os
import signal
from pathlib import Path

from fedlap.training.shards.shard import Shard


class FragileShard(Shard):
    """A shard that ends its process when it finds a file named after a point in its folder.

    A point is a verb, "before" or "after" it, and the round that the call names first: `merge-after-3`. The
    process removes the file, so that one process ends at each point.
    """

    folder = Path(os.environ.get("FEDLAP_FAULTS", "/nonexistent"))

    def run(self, verb, *arguments):
        round = getattr(arguments[0], "round", arguments[0])
        self._pass(f"{verb}-before-{round}")
        result = super().run(verb, *arguments)
        self._pass(f"{verb}-after-{round}")
        return result

    def _pass(self, point):
        if not point[-1].isdecimal():
            return  # The call names no round.
        try:
            (self.folder / point).unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
