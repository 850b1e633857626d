"""A reader can follow a round: it passes through few modules."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "round_modules.py"
MOST_MODULES = 14
KERNEL = "kernels/cpp_library.py"


def test_a_round_of_fedu_passes_through_few_modules():
    # In a process without the checks of shapes, whose functions would count too.
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout)
    if KERNEL not in modules:
        pytest.skip("no compiler")
    assert len(modules) <= MOST_MODULES, f"{len(modules)} modules: {', '.join(modules)}"
