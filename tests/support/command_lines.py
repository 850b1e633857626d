"""Command lines, valid and mutated, and a process that runs them and looks at what is left behind.

As a program, `python command_lines.py FOLDER FIRST COUNT`: runs these lines in a folder of its own, and
prints what was asked and what came of it, a line for each.
"""

import contextlib
import faulthandler
import io
import json
import os
import random
import shutil
import socket
import stat
import sys
from pathlib import Path

import numpy as np

from fedlap.experiments.experiment import Experiment

LIMIT = 60  # seconds per line; every line is written to need only a few
CODES = {0, 1, 2}  # done; a run diverged, or a part could not be done; a mistake
HUGE = 2**62
TEXTS = (
    "", " ", "x", "x" * 300, "x" * 5000, "é", "名前", "\x1b[31mred\x1b[0m", "a\nb", "\r\x07\x9b",
    "\u202eabc", "\udcff",
    "-", "--", "'", '"', "[/red]", "[red]", "%s", "{}", "../home/x", "~", "~nobody", "*", "=", ",",
    "a=b", "null",
    "None", "true", "$HOME", "<a>", "&", ";", "1,2", "all", ":bug:",
)  # fmt: skip
NUMBERS = (
    "0", "1", "2", "3", "-1", "0.5", "1.5", "-0.0", "1e-300", "1e308", "1e999", "nan", "inf",
    "-inf", "0x10", "1_0",
    "٣", "²", str(HUGE), str(2**63), str(10**30), "9" * 5000,
)  # fmt: skip
PLACES = (
    "in", "in/own.csv", "in/own.npz", "in/edges.csv", "in/experiment.toml", "in/recipe.toml", "in/image.png",
    "in/bytes.npz", "in/empty.csv", "in/link.csv", "in/loop.csv", "in/fifo", "in/fifo.csv", "in/fifo.toml",
    "in/secret.csv", "in/missing.csv", "in/missing/own.csv", "in/own.csv/x.csv", "in/null", "out",
    "out/run", "out/compared", "out/model.safetensors", "out/run/experiment.toml",
    "out/run/models", "out/new",
    "out/" + "n" * 300 + ".csv", "out/\x1b[31m.csv", "out/\udcff.csv", "in/\udcff.csv",
    "out/a b.csv", "out/new.png",
    "out/new.npz", "out/new.mtx", "out/new.txt", "out/new.safetensors",
)  # fmt: skip
SETTINGS = (
    "algorithm.strength=0.01", "model=mlp", "model.hidden=[2]", "model.hidden=[[2]]", "partition=dirichlet",
    "partition.clients=3", "graph=ring", "graph.weight=2", "evaluate_every=0", "dtype=float64",
    "dtype=float16",
    "engine=one_by_one", "scarce=true", "scarce.keep=0.5", "fold.number=2", "fold={}", "data.scale=none",
    "data.test_share=0.5", "seed=7", "batch=all", "content=abc", "algorithm=", "=1", "rounds", "x=1", "data=",
    "model={}", "a" * 2000 + "=1", "data.test_share=" + "[" * 3000, "batch=" + "{a=" * 500,
    "graph.path=in/fifo",
    "data.path=in/null", "data.name=\x1b[31m", "partition.name=[/x]",
)  # fmt: skip
POOLS = {
    "--data": ("in/own.csv", "in/own.npz", "digits", "synthetic", "digts", *PLACES),
    "--client": ("who", "y", "whom", *TEXTS),
    "--label": ("y", "who", "nothing", *TEXTS),
    "--neighbours": ("a", "a,b=0.5", "a=x", "z", *TEXTS),
    "--id": ("who", "y", "whom", *TEXTS),
    "--by": ("who", "whom", *TEXTS),
    "--drop": ("x1", "who", "x1,x2", *TEXTS),
    "--algorithm": ("fedu", "local", "mocha", "fedper", "dfedu", "fedo", *TEXTS),
    "--algorithms": ("fedu,local", "local", "local,local", "fedu,x", *TEXTS),
    "--model": ("linear", "mlp", "cnn", "liner", *TEXTS),
    "--partition": ("labels", "dirichlet", "natural", *TEXTS),
    "--graph": ("complete", "ring", "star", "nearest", "known", "in/edges.csv", *PLACES, *TEXTS),
    "--seeds": ("0", "0-1", "1-0", "0-99999999999", "0-1-2", "1,1", "-1", ",", *NUMBERS, *TEXTS),
    "--vary": (
        "lr=0.01,0.1", "strength=0,0.01", "graph=ring,complete", "batch=1,all", "lr=nan,inf",
        "model.hidden=[2],[3]",
        "lr=", "lr", "seed=1,2", "x=1", "lr=[", "lr=" + "[" * 3000, "graph=in/fifo.csv", *TEXTS,
    ),
    "--set": SETTINGS,
    "--batch": ("1", "all", *NUMBERS, *TEXTS),
    "--device": ("cpu", "cuda", "cuda:99", "mps", "meta", *TEXTS),
    "--track": ("tensorboard", "tensorbord", ",", *TEXTS),
    "--colour": ("rows", "label", "component", "accuracy", "size", *TEXTS),
    "--method": ("kernel", "smooth", *TEXTS),
    "--workers": ("1", "0", "-1", "x"),
}  # fmt: skip
DATA_WORDS = ("--data", "in/own.csv", "--client", "who", "--label", "y")
# Valid lines of every command that needs more than its name; a new command is tried with its name alone.
BASES = {
    ("run",): [[*DATA_WORDS], ["in/experiment.toml"], [*DATA_WORDS, "--algorithm", "local", "--json"]],
    ("compare",): [[*DATA_WORDS, "--algorithms", "fedu,local", "--seeds", "0"]],
    ("sweep",): [[*DATA_WORDS, "--vary", "lr=0.01,0.1", "--seeds", "0"]],
    ("tune",): [[*DATA_WORDS, "--vary", "lr=0.01,0.1", "--folds", "2"]],
    ("reproduce",): [["in/recipe.toml", "--quick", "--no-page"]],
    ("results",): [["out", "--to", "out/pages"]],
    ("runs",): [[], ["--json"]],
    ("show",): [["out/run"], ["out/run", "--to", "out/scores.csv"], ["own"]],
    ("resume",): [["out/run"]],
    ("report",): [["out/run", "--out", "out/page"]],
    ("export",): [["out/run", "--client", "a", "--to", "out/new.safetensors"]],
    ("predict",): [
        ["out/run", "in/own.csv", "--client", "a"],
        ["out/run", "in/own.csv", "--by", "who", "--to", "out/predictions.csv"],
        ["out/model.safetensors", "in/own.csv", "--json"],
    ],
    ("join",): [["out/run", "in/own.csv", "--neighbours", "a", "--name", "z", "--to", "out/z.safetensors"]],
    ("theory",): [["out/run"], ["out/run", "--json"]],
    ("algorithms",): [["fedu"]],
    ("cite",): [["out/run"], ["--algorithms", "all"]],
    ("data", "get"): [["nothing"]],
    ("data", "describe"): [["in/own.csv", "--client", "who", "--label", "y"]],
    ("graph", "make"): [["out/new.csv", *DATA_WORDS]],
    ("graph", "describe"): [["in/edges.csv"], ["out/run"], ["in/edges.csv", "--models", "out/run"]],
    ("graph", "learn"): [["out/run", "out/new.csv"]],
    ("graph", "draw"): [["in/edges.csv", "out/new.png"]],
    ("keys", "authority"): [["--folder", "out/second"]],
    ("keys", "server"): [["--host", "localhost", "--authority", "out/authority", "--folder", "out/server"]],
    ("keys", "request"): [["--name", "north", "--folder", "out/north"]],
    ("keys", "sign"): [["out/north/request.pem", "--authority", "out/authority", "--to", "out/north.pem"]],
    ("keys", "install"): [["out/authority/issued/client-north-1.pem", "--folder", "out/north"]],
    ("keys", "revoke"): [["north", "--authority", "out/authority"]],
    ("keys", "show"): [["out/authority"], ["out/authority", "--json"]],
}  # fmt: skip
KINDS = (*("drop", "double", "swap", "replace", "insert"), *3 * ("option", "value", "place", "set"))
WEIGHTS = {
    ("run",): 4,
    ("compare",): 2,
    ("data", "list"): 0.1,
    ("data", "get"): 0.2,
    ("report",): 0.1,
    ("reproduce",): 0.2,
    ("algorithms",): 0.3,
    ("theory",): 0.3,
    ("tune",): 0.5,
    **dict.fromkeys((path for path in BASES if path[0] == "keys"), 0.1),
    # These need a server or neighbours, so that none of their lines is valid here.
    **dict.fromkeys(
        [(name,) for name in ("serve", "client", "peer", "check", "status", "admit", "eject")], 0.1
    ),
}
# Larger values of the options below are valid, but take for ever.
LASTING = ("rounds", "local_steps", "local_epochs", "inner_steps", "inner_epochs", "steps", "epochs")
RECIPE = """
title = "Tiny"
place = "nowhere"
[common]
rounds = 2
[readings.steps]
title = "five steps"
settings = { local_steps = 5 }
grid = { lr = [0.03, 0.3] }
[cells.tiny]
title = "tiny"
data = { name = "synthetic", clients = 3, features = 2, rows = 8, test_rows = 4 }
model = { name = "linear" }
[rows.local]
title = "Local"
algorithm = { name = "local" }
grid = { lr = "reading" }
[quick]
cells = ["tiny"]
seeds = "0"
rounds = 1
"""


FIELDS = (
    *Experiment.model_fields, "algorithm.lr", "algorithm.strength", "algorithm.name",
    "model.hidden", "model.l2",
    "partition.clients", "partition.spread", "data.path", "data.client", "graph.neighbours",
    "graph.weight", "graph.path",
    "data.scale", "data.test_share", "data.sha256", "scarce.share", "scarce.keep", "fold.held_out",
    "fold.number",
)  # fmt: skip


def commands(command, path=()):
    """Every command of the application, by its words, with its options."""
    inner = getattr(command, "commands", None)
    if inner is None:
        options = [p for p in command.params if p.param_type_name == "option"]
        flags = {name: bool(getattr(p, "is_flag", False)) for p in options for name in p.opts}
        yield path, {name: flag for name, flag in flags.items() if name not in ("--help", "-h")}
        return
    for name, subcommand in inner.items():
        yield from commands(subcommand, (*path, name))


def line(number, known):
    """The line of this number: a valid one, with up to three mutations."""
    rng = random.Random(f"command line {number}")
    paths = list(known)
    path = rng.choices(paths, [WEIGHTS.get(path, 1.0) for path in paths])[0]
    every = [(path, name) for path, options in known.items() for name in sorted(options)]
    tried = (
        every[number // 4 : number // 4 + 1] if number % 4 == 3 else []
    )  # every option of every command, once
    path = tried[0][0] if tried else path
    options = known[path]
    words = list(rng.choice(BASES.get(path, [[]])))
    for _, name in tried:
        words += an_option(rng, name, options)
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 2, 3))):
        words = mutate_words(rng, words, options)
    return tame(path, options, [*path, *words] if rng.random() < 0.98 else [*words, *path])


def mutate_words(rng, words, options):
    """Return the words with one word dropped, doubled, swapped, replaced, inserted or added."""
    words = list(words)
    at, other = (rng.randrange(len(words)) if words else 0 for _ in range(2))
    match rng.choice(KINDS):
        case "drop" if words:
            del words[at]
        case "double" if words:
            words.insert(other, words[at])
        case "swap" if words:
            words[at], words[other] = words[other], words[at]
        case "replace" if words:
            words[at] = rng.choice((*TEXTS, *NUMBERS, *PLACES))
        case "insert":
            words.insert(at, rng.choice((*TEXTS, *NUMBERS, *PLACES)))
        case "value" if any(word in POOLS for word in words):
            at = rng.choice([place for place, word in enumerate(words) if word in POOLS])
            words[at + 1 : at + 2] = [rng.choice(POOLS[words[at]])]
        case "place" if any("/" in word for word in words):
            at = rng.choice([place for place, word in enumerate(words) if "/" in word])
            words[at] = rng.choice(PLACES)
        case "set" if "--set" in options:
            field, value = rng.choice(FIELDS), rng.choice((*NUMBERS, *TEXTS, *PLACES))
            words += ["--set", f"{field}={value}"]
        case _:
            words += an_option(rng, rng.choice(sorted(options) or ["--help"]), options)
    return words


def an_option(rng, name, options):
    """An option with a value, where it takes one."""
    value = rng.choice(POOLS.get(name, (*NUMBERS, *PLACES, *TEXTS)))
    if options.get(name, True):
        return [name]
    return [f"{name}={value}"] if rng.random() < 0.2 else [name, value]


def tame(path, options, words):
    """The same, but nothing that is valid and takes for ever: many rounds, a download, every recipe."""
    for at, word in enumerate(words):
        for name in LASTING:
            option = f"--{name.replace('_', '-')}"
            if word.startswith(f"{option}=") or f"{name}=" in word:
                head, _, value = word.partition("=")
                words[at] = f"{head}={_few(value)}"
            elif word == option and at + 1 < len(words):
                words[at + 1] = _few(words[at + 1])
    if path == ("data", "get"):
        words = [word if word != "all" else "al" for word in words]
    if path == ("reproduce",):
        words = [word for word in words if not word.startswith("--all")]
    if "--rounds" in options and not any(word.startswith("--rounds") for word in words):
        words += ["--rounds", "2"]
    return words


def _few(text):
    with contextlib.suppress(ValueError, OverflowError):
        return "3" if 100 < float(text) < 2**63 else text
    return text


def insert_run_name(words, run):
    """Replace `run` by a run's folder name, because `run` is no name to resume it by."""
    return [word.replace("out/run", f"out/{run}") for word in words]


def furnish(folder):
    """Make the files that lines name: `in` is only read, `out` is written."""
    inner = folder / "place" / "in"
    inner.mkdir(parents=True)
    (folder / "place" / "out").mkdir()
    (folder / "home").mkdir()
    (folder / "neighbour.txt").write_text("not yours")
    rng = np.random.default_rng(0)
    x, y, who = rng.normal(size=(24, 2)), rng.integers(0, 2, 24), np.resize(list("abc"), 24)
    rows = (
        f"{n},{a:.3f},{b:.3f},{'yes' if label else 'no'}" for n, (a, b), label in zip(who, x, y, strict=True)
    )
    (inner / "own.csv").write_text("\n".join(["who,x1,x2,y", *rows]) + "\n")
    np.savez(inner / "own.npz", x=x, y=y, client=who)
    (inner / "edges.csv").write_text("a,b,1.0\nb,c,2.0\n")
    (inner / "recipe.toml").write_text(RECIPE)
    (inner / "experiment.toml").write_text(
        'rounds = 2\n[data]\nname = "file"\npath = "in/own.csv"\nclient = "who"\nlabel = "y"\n'
        '[algorithm]\nname = "fedu"\n[graph]\nname = "ring"\n'
    )
    (inner / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    (inner / "bytes.npz").write_bytes(rng.bytes(512))
    (inner / "empty.csv").touch()
    (inner / "secret.csv").write_text("x")
    (inner / "secret.csv").chmod(0)
    (inner / "link.csv").symlink_to("own.csv")
    (inner / "loop.csv").symlink_to("loop.csv")
    (inner / "null").symlink_to("/dev/null")  # a link, since a defect would replace the device itself
    for name in ("fifo", "fifo.csv", "fifo.toml"):
        os.mkfifo(inner / name)
    os.chdir(folder / "place")
    answer = json.loads(
        call(["run", *DATA_WORDS, "--rounds", "2", "--json", "--save-rounds", "1", "--out", "out"])[1]
    )
    words = ["compare", *DATA_WORDS, "--rounds", "2", "--algorithms", "fedu,local", "--seeds", "0", "--json"]
    Path(json.loads(call([*words, "--out", "out"])[1])["folder"]).rename("out/compared")
    call(["export", answer["folder"], "--client", "a", "--to", "out/model.safetensors"])
    call(["keys", "authority", "--folder", "out/authority"])
    call(["keys", "request", "--name", "north", "--folder", "out/north"])
    call(["keys", "sign", "out/north/request.pem", "--authority", "out/authority"])
    shutil.copytree(
        folder / "place", folder / "pristine", symlinks=True, ignore=shutil.ignore_patterns("fifo*")
    )


def call(words):
    """Run a command line in this process: exit code, standard output, standard error."""
    from fedlap import cli

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sys.argv = ["fedlap", *words]
        try:
            cli.main()
            code = None
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), err.getvalue()


def snapshot(folder, words):
    """Return the files that must stay: all but the folders that a command writes by default or by a word."""
    place = folder / "place"
    named = [os.path.normpath(place / word.partition("=")[2]) for word in words if "=" in word]
    named += [os.path.normpath(place / word) for word in words if word]
    free = {
        str(place / name)
        for name in ("out", "runs", "keys", "reproduced", "docs", "model.safetensors", "model.json")
    }
    free |= {path for path in named if path not in (str(place), str(folder), "/")}
    free |= {str(Path(path).with_suffix(".json")) for path in free if path.endswith(".safetensors")}
    free |= {str(folder / name) for name in ("cache", "pristine")}
    seen = {}
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if f"{here}/{name}" not in free]
        for name in files:
            path = f"{here}/{name}"
            if path not in free:
                about = os.lstat(path)
                seen[path] = (about.st_mode, about.st_size, about.st_mtime_ns)
    return seen


def complaints(folder, words, before, answer):
    """Everything that is wrong with what a line did."""
    code, out, err = answer
    lines = err.splitlines()
    if code not in CODES:
        yield f"exit code {code}"
    if "Traceback" in out + err:
        yield "a traceback"
    if code == 2 and not (lines and lines[-1].startswith("error: ")):
        yield "no error is told"
    if code == 2 and sum(text.startswith("error: ") for text in lines) > 1:
        yield "several errors are told"
    if any(len(text) > 800 for text in lines):
        yield f"a line of {max(map(len, lines))} characters"
    if any(
        (sign < " " and sign not in "\n\t") or "\x7f" <= sign < "\xa0" or "\ud800" <= sign < "\ue000"
        for sign in out + err
    ):
        yield "a control character"
    if not stat.S_ISCHR(Path("/dev/null").stat().st_mode):
        yield "/dev/null is no device any more"
    after = snapshot(folder, words)
    for path in before.keys() | after.keys():
        if before.get(path) != after.get(path):
            yield f"{path} was changed"


def restore(folder):
    """Restore the files that a line was asked to overwrite."""
    place, pristine = folder / "place", folder / "pristine"
    for path in place.iterdir():
        if path.name not in ("in", "out"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.rmtree(place / "out")
    shutil.copytree(pristine / "out", place / "out", symlinks=True)
    for path in (place / "in").iterdir():
        if not stat.S_ISFIFO(path.lstat().st_mode):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in (pristine / "in").iterdir():
        shutil.copy2(path, place / "in" / path.name, follow_symlinks=False)


def known_commands():
    """The commands of fedlap and their options."""
    from fedlap.cli import build_commands

    return dict(commands(build_commands()))


def main(folder, first, count):
    """Run lines one after another; whoever reads what is printed sees where a crash or a hang was."""

    def offline(*words, **more):
        raise OSError("tests are offline")

    from cost_rates import RATES
    from fedlap.cli import plan

    socket.getaddrinfo = offline
    plan.calibrate = lambda *_: RATES  # Measuring this machine takes ten seconds or more.
    faulthandler.enable()
    if not (folder / "place").exists():
        furnish(folder)
    os.chdir(folder / "place")
    known = known_commands()
    (run,) = (path.name for path in Path("out").glob("own-fedu-*"))
    for number in range(first, first + count):
        words = insert_run_name(line(number, known), run)
        print(json.dumps({"number": number, "words": words}), end="\t", flush=True)
        before = snapshot(folder, words)
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        answer = call(words)
        faulthandler.cancel_dump_traceback_later()
        wrong = list(complaints(folder, words, before, answer))
        print(json.dumps({"code": answer[0], "wrong": wrong, "err": answer[2][-1000:]}), flush=True)
        restore(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
