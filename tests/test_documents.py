"""What the documents show works."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(example):
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def test_the_readme_s_python_runs(tmp_path, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) == 1
    script = tmp_path / "readme.py"
    script.write_text(blocks[0])
    names = runpy.run_path(str(script))
    assert names["result"].models.shape == (20, 650)
    assert names["result"].scores[-1].accuracy > 0.95


def test_the_readme_s_commands_exist():
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M)) <= targets
    assert {"demo", "test"} <= set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M))
    assert "make test" in (ROOT / ".ci" / "run").read_text()
