"""Child processes: started for one function, ended or killed."""

import os
import signal
import time
import traceback


def started(job, *given):
    """A process of its own that does this."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            job(*given)
            code = 0
        except BaseException:
            traceback.print_exc()  # the test fails by the exit code
        finally:
            os._exit(code)
    return child


def ended(child, after=None):
    """Its exit code; it is killed when so many seconds have passed."""
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
