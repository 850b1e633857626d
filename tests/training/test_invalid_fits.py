"""Invalid input through every public door is an error of one line, and never a crash."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "invalid_fits.py"


@pytest.mark.parametrize(
    ("every", "at_least"), [(3, 90), pytest.param(1, 270, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_invalid_fits_are_errors(every, at_least):
    """They run in a process of their own, which a crash would end."""
    done = subprocess.run([sys.executable, SCRIPT, str(every)], capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"crashed with {done.returncode} at {lines[-1:]}\n{done.stderr}"
    errors = [line for line in lines if len(line) == 3]
    assert len(errors) >= at_least
    for name, error, message in errors:
        assert error == "InputError", f"{name}: {error} {message}"
        assert message, name
        assert "\n" not in message, name
