"""Processes of `fedlap` that start at once: they are forked from a process that has imported everything.

Importing takes seconds per process, and a test of faults starts dozens. Run as a script, this file is the
process that forks: it reads one JSON line per request from standard input, and answers with one line. It ends
with its standard input, and ends the processes that it has started.
"""

import gc
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ProcessStarter:
    """The test's end: start commands, and ask for their exit codes."""

    def __init__(self, enter=()):
        """Start the process that forks. enter: a command that runs it in another namespace."""
        # A namespace may begin in another folder, and the modules of this process are the tested ones.
        paths = os.pathsep.join(map(os.path.abspath, sys.path))
        self._parent = subprocess.Popen(
            [*enter, sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True, env={**os.environ, **THREADS, "PYTHONPATH": paths},
        )  # fmt: skip
        self._codes = {}

    @property
    def pid(self):
        """The process that forks, in whose namespaces the others are."""
        return self._parent.pid

    def start(self, words, output, folder, variables=None, change=None):
        """Start `fedlap` with these words and return the process id.

        output: file that standard output and error are appended to. change: name and arguments of a function
        of `process_changes.py`, which is called in the process before the command.
        """
        return self._ask(
            words=[str(word) for word in words], output=str(output), folder=str(folder),
            variables=variables or {}, change=change,
        )  # fmt: skip

    def poll(self, pid):
        """Return the exit code of a process, or None while it runs; a signal is a negative number."""
        if pid not in self._codes:
            code = self._ask(pid=pid)
            if code is None:
                return None
            self._codes[pid] = code
        return self._codes[pid]

    def send_signal(self, pid, number):
        """Send a signal to a process that runs."""
        if self.poll(pid) is None:
            os.kill(pid, number)

    def close(self):
        """End all processes."""
        self._parent.stdin.close()
        self._parent.wait(30)
        self._parent.stdout.close()

    def _ask(self, **request):
        self._parent.stdin.write(json.dumps(request) + "\n")
        self._parent.stdin.flush()
        line = self._parent.stdout.readline()
        assert line, "the process that starts others has ended"
        return json.loads(line)


# In the process that forks.


def serve_requests():
    """Answer requests until standard input ends; in a forked process, return its request."""
    running = set()
    # Unbuffered, so that a forked process holds no request of others.
    with os.fdopen(os.dup(0), "rb", buffering=0) as requests:
        while line := requests.readline():
            request = json.loads(line)
            if "pid" in request:
                pid, status = os.waitpid(request["pid"], os.WNOHANG)
                answer = None if pid == 0 else os.waitstatus_to_exitcode(status)
                running.discard(pid)
            else:
                answer = os.fork()
                if answer == 0:
                    break
                running.add(answer)
            print(json.dumps(answer), flush=True)
        else:
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return None
    return request


def run_command(request):
    """Become the process of a command; its exit is that of the interpreter."""
    os.setpgid(0, 0)
    for path, flags, descriptors in (
        (os.devnull, os.O_RDONLY, (0,)),
        (request["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, (1, 2)),
    ):
        file = os.open(path, flags, 0o600)
        for descriptor in descriptors:
            os.dup2(file, descriptor)
        os.close(file)
    os.environ.update(request["variables"])
    os.chdir(request["folder"])
    sys.argv = ["fedlap", *request["words"]]
    if request["change"]:
        import process_changes

        name, *values = request["change"]
        getattr(process_changes, name)(*values)
    import fedlap.cli

    fedlap.cli.main()


if __name__ == "__main__":
    import pandas  # noqa: F401
    import zenoh  # noqa: F401

    import fedlap.cli.peer
    import fedlap.cli.serve
    import fedlap.cli.site_client  # noqa: F401

    gc.freeze()  # The end of a forked process would else search all that was imported for cycles.
    wanted = serve_requests()
    if wanted is not None:
        run_command(wanted)
