"""Scripts that end while their connections are open: the process must end by itself and print nothing."""

import subprocess
import sys

ASK_AND_EXIT = """
import sys, threading
from fedlap.deploy.transport import UnreachableError

def ask_and_exit(ask, holder):
    def wait():
        try:
            ask()
        except UnreachableError:  # the sessions close at exit
            pass

    threading.Thread(target=wait, daemon=True).start()
    print(holder.receive(60.0).name)
"""


def run_until_exit(script, words, asker):
    """Run a script that calls `ask_and_exit`; assert that the name of the asker is all that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", ASK_AND_EXIT + script, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{asker}\n", "")
