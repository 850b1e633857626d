"""A user's own rows: two small tables, and how they are written, read, damaged, and found in a run."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors import safe_open

import fedlap as fl

FILES = ("csv", "parquet", "npz")
FEATURES = ["age", "dose"]
TABLE = ("--client", "hospital", "--label", "outcome")
QUICK = ("--rounds", "1")
# Four clients with eight rows each, in turns; a client's labels alternate.
_rng = np.random.default_rng(0)
ROWS = pd.DataFrame(
    {
        "hospital": np.tile(["north", "south", "east", "west"], 8),
        "age": _rng.normal(size=32),
        "dose": _rng.integers(0, 9, 32),
        "outcome": np.tile(np.repeat(["well", "ill"], 4), 4),
    }
)
REAL = ROWS.assign(outcome=_rng.normal(size=32))


def arrays(frame):
    """A frame as the arrays of an NPZ file."""
    names = {name: frame[name].to_numpy() for name in ("hospital", "outcome") if name in frame}
    columns = {name: array.astype(str) if array.dtype == object else array for name, array in names.items()}
    return {"x": frame[[c for c in frame if c not in names]].to_numpy(float), **columns}


def pack_arrays(save=np.savez, **columns):
    buffer = io.BytesIO()
    save(buffer, **columns)
    return buffer.getvalue()


def write(path, content):
    """A frame in the path's format, arrays, text, bytes, or a folder."""
    if content is None:
        path.mkdir()
    elif isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    elif path.suffix == ".npz":
        np.savez(path, **arrays(content))
    elif path.suffix == ".parquet":
        content.to_parquet(path, index=False)
    else:
        content.to_csv(path, index=False, float_format="%.17g")
    return str(path)


def load_rows(form, frame, folder, held=None, test_share=0.25, seed=3, **settings):
    """Return an unscaled federation from this form of the same rows."""
    if form == "frame":
        settings |= {"test": held, "test_share": test_share, "seed": seed, "scale": "none"}
        return fl.Federation.from_dataframe(frame, "hospital", "outcome", **settings)
    if form == "arrays":
        names = None if frame.outcome.dtype == float else sorted(set(frame.outcome))

        def group_by_client(rows):
            y = rows.outcome if names is None else rows.outcome.map(names.index)
            x, y, whose = rows[FEATURES].to_numpy(float), y.to_numpy(), rows.hospital.to_numpy()
            return {name: (x[whose == name], y[whose == name]) for name in dict.fromkeys(whose)}

        test = None if held is None else group_by_client(held)
        return fl.Federation.from_arrays(
            group_by_client(frame), test_share, seed, test=test, labels=names, scale="none"
        )
    settings |= {"path": write(folder / f"my.{form}", frame), "client": "hospital", "label": "outcome"}
    if held is not None:
        settings["test"] = write(folder / f"held.{form}", held)
    return fl.data.load("file", seed, scale="none", test_share=test_share, **settings)


def but(row, **cells):
    """The rows with other values in one of them."""
    frame = ROWS.astype(object)
    for column, value in cells.items():
        frame.loc[row, column] = value
    return frame.infer_objects()


def metadata(folder):
    return json.loads((Path(folder) / "models" / "about.json").read_text())


def models(folder):
    with safe_open(Path(folder) / "models" / "models.safetensors", "np") as file:
        return file.get_tensor("models")


X, Y, WHO = np.zeros((32, 2)), np.arange(32) // 4 % 2, np.arange(32) % 4
SAVED = pack_arrays(np.savez_compressed, x=_rng.normal(size=(32, 2)), y=Y, client=WHO)


def place(array, at, value):
    changed = np.array(array, float)
    changed[at] = value
    return changed
