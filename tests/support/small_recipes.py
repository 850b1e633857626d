"""A recipe that is read and run in no time, and changes to its text."""

from pathlib import Path

from fedlap.reproduce.recipe import Recipe

SMALL = """
title = "Digits"
place = "nowhere"

[common]
rounds = 4
evaluate_every = 2

[readings.steps]
title = "five steps"
settings = { local_steps = 5 }
grid = { lr = [0.03, 0.3] }

[cells.digits-convex]
title = "digits, convex"
data = { name = "digits" }
model = { name = "linear", l2 = 0.001 }
paper = { fedu = [90.0, 1.0] }

[rows.local]
title = "Local"
algorithm = { name = "local" }
grid = { lr = "reading" }

[rows.fedu]
title = "FedU"
algorithm = { name = "fedu" }
graph = { name = "complete" }
follows = { lr = "local" }
grid = { strength = [0.001, 0.01] }

[[claims]]
text = "FedU is at least as good as Local"
row = "fedu"
against = ["local"]

[quick]
cells = ["digits-convex"]
"""


def small(tmp_path: Path, *changes: tuple[str, str], name: str = "digits-table") -> Recipe:
    text = SMALL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    return Recipe.read(path)
