"""Child processes: started for one function, ended or killed."""

import os
import signal
import time
import traceback


def start_child(job, *args):
    """Start a child process that calls `job` and return its id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            job(*args)
            code = 0
        except BaseException:
            traceback.print_exc()  # the test fails by the exit code
        finally:
            os._exit(code)
    return child


def wait_for_child(child, after=None):
    """Return the exit code of a child process; kill it first if `after`, in seconds, is set."""
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
