"""Every line of every console block of README and the pages runs, or is listed here with the reason.

A page is one session: its lines run in turn, in a folder with the files that they name, with fewer rounds and
seeds than on the page. Output below a prompt must be the output of its line; a line "…" stands for lines
that the page omits.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from sybil import Region, Sybil
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

import fedlap as fl
from fedlap.errors import InputError
from fedlap.experiments.run_folder import list_run_folders
from plugin_files import snapshot_registries

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "results"),
]
SHELLS = {"", "console", "sh", "shell", "bash"}
ABSENT = "could not be downloaded"
ROUNDS, SEEDS = "2", "0-1"  # on every page, to save time
FOLDERS, DIGITS = {"RUN", "FOLDER"}, "a1b2c3d4"  # of the newest run or comparison

NOT_RUN = {  # lines that this test does not run, and the tests that run the same commands
    r"fedlap (serve|client|peer|check|status|admit|eject)\b": "tests/deploy: these need several machines",
    r"fedlap predict (north|fedlap-north(east)?/model)\.safetensors": "tests/deploy/test_site_model.py",
    r"fedlap report (runs/radon-minnesota|fedlap-north)": "tests/deploy: of a deployment",
    r"fedlap data get\b": "tests/data/test_download.py: it needs the network",
    r".* (--engine ray|--workers|--address)\b": "tests/training/shards, tests/cli/test_task_workers.py",
    r".* --track \S*wandb": "tests/tracking: it needs an account",
    r"fedlap plan (?!--clients 1e4,1e6,1e8 --sample 0.01$)": "tests/cli/test_plan_command.py: 10 s each",
    r"fedlap reproduce\b": "tests/cli/test_reproduce_command.py: hours",
    r"make\b": "tests/test_documents.py: the targets exist",
    r"pip (install|wheel)\b": "tests/test_wheel.py: these need the network",
    r"python3 -m venv\b|\. \.venv/bin/activate": "the environment of these tests",
    r"flwr\b|flower-supernode\b|cd examples/flower-app": "tests/deploy/test_flower_*.py",
    r"(for|done|wait|python examples/deploy/)\b|.*\$name": "tests/deploy/peers/test_peers_page.py",
}
PREPARE = {  # a line that a page takes for granted
    "cite.md": "fedlap run --data radon",
    "graphs.md": "fedlap run --data har",
    "personal-models.md": "fedlap run --data held.csv --client hospital --label outcome --graph complete",
}


def parse_shell(document):
    """Yield the console blocks of a page; blocks of shells that begin with no command are output."""
    info = re.compile(r"(?P<language>[^\n]*)\n")
    for region in RawFencedCodeBlockLexer(info)(document):
        language, source = region.lexemes["language"].strip(), region.lexemes["source"]
        if language in SHELLS:
            yield Region(region.start, region.end, str(source), lambda example: None)


def read_blocks(page):
    """Return the text of each console block."""
    document = Sybil(parsers=[parse_shell], path=str(page.parent), pattern=page.name).parse(page)
    return [example.parsed for example in document.examples()]


def read_lines(block):
    """Yield the lines of a block that are commands, each with the output below it, if it has a prompt."""
    if "$ " in block:
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            line, output = part.split("\n", 1)
            yield line, output
        return
    words = (
        "fedlap",
        "make",
        "pip",
        "python",
        "python3",
        "flwr",
        "flower-supernode",
        "cd",
        ".",
        "for",
        "wait",
    )
    if block.split()[0] in words:
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip():
                yield line.strip(), None


def find_reason(line):
    """Return the reason why a line is not run here, or None."""
    return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, line)), None)


def write_tables(folder):
    """Write the tables that lines name."""
    rng, rows = np.random.default_rng(0), 120
    x = rng.normal(size=rows)
    base = pandas.DataFrame({"age": x.round(3), "dose": rng.normal(size=rows).round(3)})
    sites = np.array(["north", "south", "east"])[np.arange(rows) % 3]
    outcome = np.where(x + rng.normal(size=rows) > 0, "ill", "well")
    day = pandas.date_range("2024-01-01", periods=rows, freq="D").strftime("%Y-%m-%d")
    held = base.assign(hospital=sites, outcome=outcome)
    held.to_csv(folder / "held.csv", index=False)
    held.assign(city="Oslo").to_csv(folder / "my.csv", index=False)
    held.assign(hospital="west", county="north", floor=0).to_csv(folder / "new.csv", index=False)
    base.to_csv(folder / "more.csv", index=False)
    held.assign(day=day, patient=np.arange(rows) // 4).to_csv(folder / "visits.csv", index=False)
    floors = np.arange(rows) // 3 % 2
    houses = base.assign(county=sites, floor=floors, radon=x + floors, day=day)
    houses.to_csv(folder / "houses.csv", index=False)
    base.assign(region=sites, income=x, household=1 + floors).to_csv(folder / "survey.csv", index=False)
    stations = pandas.DataFrame({"station": np.arange(rows) % 12, "rain": x, "day": np.arange(rows)})
    for place in ("lon", "lat", "height"):
        stations[place] = stations.station * 7 % 12 + len(place)
    stations.to_csv(folder / "stations.csv", index=False)


def write_plugins(folder):
    """Write the plugins that lines name: the code of the page on extensions."""
    text = (ROOT / "docs" / "howto" / "extending.md").read_text("utf-8")
    code = re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)[2]
    for name in ("coins.py", "my_network.py"):
        (folder / name).write_text(code, "utf-8")
    (folder / "examples").symlink_to(ROOT / "examples")


def set_option(words, option, value):
    """Set the value of an option, if the line has it."""
    if option in words:
        words[words.index(option) + 1] = value
        return True
    return False


def shorten(words):
    """Return the words of a line with fewer rounds, seeds and clients, without a browser or a question."""
    words, command = [word for word in words if word != "--open"], words[1]
    if command in ("run", "compare", "sweep", "tune") and not words[2].endswith(".toml"):
        set_option(words, "--rounds", ROUNDS) or words.extend(["--rounds", ROUNDS])
        if command in ("compare", "sweep"):
            set_option(words, "--seeds", SEEDS) or words.extend(["--seeds", SEEDS])
    set_option(words, "--rounds", "3") if command == "resume" else None
    set_option(words, "--clients", "2000") if words[1:3] == ["data", "make"] else None
    return [*words, "--yes"] if command == "rm" else words


def refuse_download(official_file, target):
    raise InputError(f"{official_file.name} {ABSENT}")


@pytest.fixture
def session(call, tmp_path, monkeypatch):
    """Run a line of a page; return the exit code and all output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("fedlap.data.download._download", refuse_download)
    monkeypatch.setattr("webbrowser.open", lambda *words: True)
    write_tables(tmp_path)
    write_plugins(tmp_path)
    restore = snapshot_registries()

    def find_newest(pattern):
        return sorted(tmp_path.glob(pattern), key=lambda path: path.stat().st_mtime)[-1]

    def resolve(word):
        if word in FOLDERS or word == DIGITS:
            if word == "FOLDER":
                return str(find_newest("runs/*-compare-*/"))
            newest = list_run_folders(tmp_path / "runs")[0].folder
            return newest.name.rsplit("-", 1)[1] if word == DIGITS else str(newest)
        if "…" in word:
            return str(find_newest(word.replace("…", "*")))
        if word.endswith(".pem") and "/" not in word:  # a file that was copied from another machine
            return str(find_newest(f"**/{word}"))
        return word

    def run(line, is_shown=False):
        words = shlex.split(line, comments=True)
        if words[0] == "python":
            done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True)
            return done.returncode, done.stdout + done.stderr
        if words[1:] == ["keys", "authority"]:  # another example of the page begins
            shutil.rmtree(tmp_path / "keys", ignore_errors=True)
        try:
            words = [resolve(word) for word in words]
        except IndexError:
            return 2, f"no run or file was found for this line: {line}"
        code, out, err = call(*(words if is_shown else shorten(words))[1:], out=False)
        return code, out + err

    yield run
    restore()


def squeeze(text):
    return " ".join(text.split())


def is_excerpt(shown, found):
    """Return whether the parts of a shown output, between lines "…", are in the whole output, in order."""
    place, text = 0, squeeze(found)
    for part in map(squeeze, re.split(r"^…$", shown, flags=re.M)):
        if (place := text.find(part, place)) < 0:
            return False
        place += len(part)
    return True


def test_an_excerpt_keeps_the_order():
    assert is_excerpt("a\n…\nc  d\n", "a\nb\nc d\ne")
    assert not is_excerpt("c d\n…\na\n", "a\nb\nc d\ne")
    assert not is_excerpt("a\nc d\n", "a\nb\nc d\ne")


PAGES_WITH_LINES = {
    str(page.relative_to(ROOT)): lines
    for page in PAGES
    if (lines := [line for block in read_blocks(page) for line in read_lines(block)])
}


@pytest.mark.parametrize("page", PAGES_WITH_LINES)
@pytest.mark.filterwarnings("ignore")
def test_the_lines_of_a_page_run(page, session):
    lines = [(line, output) for line, output in PAGES_WITH_LINES[page] if find_reason(line) is None]
    if not lines:
        return  # all are listed in NOT_RUN
    absent = 0
    if prepared := PREPARE.get(Path(page).name):
        session(prepared)
    for line, output in lines:
        if "--device cuda" in line and torch.cuda.is_available():
            continue
        code, found = session(line, is_shown=output is not None)
        if code and (ABSENT in found or absent):  # a later line may need the run of an earlier one
            absent += 1
        elif output is not None:
            assert is_excerpt(output, found), line
        elif "--device cuda" in line:
            assert (code, "device" in found) == (2, True), line
        else:
            assert code == 0, f"{line}\n{found}"
    if absent:
        pytest.skip(f"genuine files are absent: {absent} of {len(lines)} lines of this page did not run")


def test_reasons_belong_to_lines():
    lines = [line for found in PAGES_WITH_LINES.values() for line, _ in found]
    assert len(lines) > 100
    for pattern in NOT_RUN:
        assert any(re.match(pattern, line) for line in lines), pattern
    assert sum(find_reason(line) is None for line in lines) > len(lines) / 2


SHOWN = {  # the line whose table a page shows without a prompt
    "README.md": "fedlap compare --data radon --graph known,shuffled "
    "--algorithms fedu,local,global --seeds 0-9",
    "docs/howto/data-sets.md": "fedlap compare --data colorado --graph known,shuffled "
    "--algorithms fedu,local,global --seeds 0-9",
}


def read_scores(text):
    """Return the name of each row with its first three scores, and the lines of the tests below the table."""
    rows = [line for line in text.splitlines() if line.count(" ± ") > 1]
    scores = {
        re.split(r"\s+[\d.]+ ±", row)[0].strip(): re.findall(r"[\d.]+ ± [\d.]+", row)[:3] for row in rows
    }
    tests = [line for line in text.splitlines() if "lowest" in line or re.search(r" p [=<] ", line)]
    return scores, tests


@pytest.mark.parametrize("page", SHOWN)
def test_the_table_of_a_page_is_the_output_of_its_line(page, session):
    (shown,) = [block for block in read_blocks(ROOT / page) if "━" in block]
    assert any(SHOWN[page] in line for line, _ in PAGES_WITH_LINES[page])
    code, found = session(SHOWN[page], is_shown=True)
    if code and ABSENT in found:
        pytest.skip("genuine files are absent")
    scores, tests = read_scores(shown)
    assert code == 0
    assert len(scores) >= 4
    assert len(tests) >= 5
    assert (scores, tests) == read_scores(found)


def test_the_gains_of_the_page_on_reports_are_those_of_its_example(session):
    page = ROOT / "docs" / "howto" / "report.md"
    text = " ".join(page.read_text("utf-8").split())
    gain, lose = re.search(r"In the example (\d+) counties gain and (\d+) lose", text).groups()
    compare, report, *_ = [line for block in read_blocks(page) for line, _ in read_lines(block)]
    for line in (compare, report.replace("--open", "")):
        code, out = session(line, is_shown=True)
        assert code == 0, out
    (table,) = Path("runs").glob("*/report/tables/gains.csv")
    gains = pandas.read_csv(table).query("method == 'fedu (known)'").set_index("client")["gain_rmse"]
    assert [(gains > 0).sum(), (gains < 0).sum()] == [int(gain), int(lose)]
    federation = fl.data.load("radon")
    rows = dict(zip(federation.clients, federation.test.count.tolist(), strict=True))
    assert "The four largest losses are those of counties with a single test row" in text
    assert [rows[county] for county in gains.nsmallest(4).index] == [1] * 4
