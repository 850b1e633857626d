"""Rules of wording that a program can check, over fedlap, its tests, benchmarks, examples and pages.

Run `python tests/support/language.py [FILE or FOLDER ...]` to see every place that breaks a rule.
"""

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "fedlap"

# A docstring begins with a verb or with the noun that is returned.
FIRST_WORDS = set("What Who Whose Those So Of How Whether Where Which Let".split())  # noqa: SIM905
# Participles that do not end in "ed"; "cut" and "read" are verbs as well and stay allowed.
PARTICIPLES = {
    *("laid", "told", "kept", "made", "brought", "lent", "held", "drawn", "given", "begun", "built", "sent"),
    *(
        "found",
        "shown",
        "known",
        "dealt",
        "left",
        "said",
        "gone",
        "taken",
        "chosen",
        "written",
        "lost",
        "met",
    ),
}
VERBS_IN_ED = set("embed feed seed need proceed exceed shed bleed breed weed speed".split())  # noqa: SIM905
BANNED_NAMES = set(
    "made told said kept brought laid lent settled anew beside each own some given".split()  # noqa: SIM905
)
BANNED_PHRASES = re.compile(
    r"\b(go(es)? on|gone on|going on|went on|made|told|said|kept|brought|laid|lent|settled|at work"
    r"|so many|so much|of these|of those|anew|beside|besides|one's own|as if nothing|to be had)\b",
    re.IGNORECASE,
)

# Words of `BANNED_PHRASES` that pages may use, since a noun can follow them.
ALLOWED_IN_PAGES = {"of these", "of those", "so many", "so much"}

Place = tuple[int, str]


def check_text(text: str, strings: bool = True) -> list[Place]:
    """Return the places of a source that break a rule, as line numbers and complaints."""
    tree = ast.parse(text)
    found = {*check_names(tree), *check_docstrings(tree), *check_comments(text)}
    return sorted(found | set(check_strings(tree)) if strings else found)


def check_file(file: Path) -> list[Place]:
    """Return the places of a file that break a rule.

    Strings are messages and help texts in the package only: in tests they are inputs and expected outputs.
    """
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        return check_page("\n".join("".join(cell["source"]) for cell in cells))
    if file.suffix == ".md":
        return check_page(text)
    return check_text(text, strings=file.resolve().is_relative_to(SRC))


def check_page(text: str) -> list[Place]:
    """Return banned words in the prose of a page: outside blocks of code, code in a line, and addresses."""

    def blank(code: re.Match[str]) -> str:
        return "\n" * code.group().count("\n")

    for pattern in (
        r"^( *)(```+|~~~+).*?^\1\2`*$",  # fenced blocks
        r"(?:^(?: {4}|\t).*\n)+(?=\n|\Z)",  # indented blocks
        r"`[^`]+`",
        r"<!--.*?-->",
        r"\]\([^)]*\)",
    ):
        text = re.sub(
            pattern, blank, text, flags=re.DOTALL | re.MULTILINE if "(?:^" not in pattern else re.MULTILINE
        )
    lines = enumerate(text.splitlines(), 1)
    found = ((line, word.group()) for line, prose in lines for word in BANNED_PHRASES.finditer(prose))
    return [(line, f"page says '{word}'") for line, word in found if word.lower() not in ALLOWED_IN_PAGES]


def is_participle(name: str) -> bool:
    """Return whether a function's name is a bare participle."""
    bare = name.lstrip("_")
    if "_" in bare or bare in VERBS_IN_ED:
        return False
    return bare in PARTICIPLES or (bare.endswith("ed") and len(bare) > 4)


def check_names(tree: ast.Module) -> Iterator[Place]:
    """Find functions that are participles, and names that say nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list}
            if is_participle(node.name) and not decorators & {"property", "cached_property"}:
                yield node.lineno, f"function '{node.name}' is a participle; use a verb"
        for name in _bound_names(node):
            if name.strip("_").lower() in BANNED_NAMES:
                yield node.lineno, f"name '{name}' says nothing; use a noun of the field"  # type: ignore[attr-defined]


def _bound_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg


def _list_docstrings(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Constant]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) and node.body:
            first = node.body[0]
            constant = first.value if isinstance(first, ast.Expr) else None
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                yield node, constant


def check_docstrings(tree: ast.Module) -> Iterator[Place]:
    """Find docstrings that begin with a question word, or say what language.md bans."""
    for _, constant in _list_docstrings(tree):
        text = str(constant.value)
        words = text.split(maxsplit=1)
        if words and words[0].rstrip(",.:;") in FIRST_WORDS:
            yield constant.lineno, f"docstring begins with '{words[0]}': {text.splitlines()[0][:70]}"
        for found in BANNED_PHRASES.finditer(text):
            yield constant.lineno, f"docstring says '{found.group()}'"


def check_strings(tree: ast.Module) -> Iterator[Place]:
    """Find banned words in messages and help texts: every string with a space in it that is no docstring."""
    documented = {id(constant) for _, constant in _list_docstrings(tree)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in documented else None
        if isinstance(text, str) and " " in text:
            for found in BANNED_PHRASES.finditer(text):
                yield node.lineno, f"text says '{found.group()}': {text.strip()[:70]!r}"


def check_comments(text: str) -> Iterator[Place]:
    """Find banned words in comments."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            for found in BANNED_PHRASES.finditer(token.string):
                yield token.start[0], f"comment says '{found.group()}'"


def find_definitions(files: list[Path]) -> dict[str, list[str]]:
    """Return every public name defined at the top of a module, and the modules that define it."""
    definitions: dict[str, list[str]] = {}
    for file in files:
        names: set[str] = set()
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                names.update(target.id for target in node.targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
        for name in names:
            if not name.startswith("_"):
                definitions.setdefault(name, []).append(str(file.relative_to(SRC)))
    return definitions


def find_duplicates() -> dict[str, list[str]]:
    """Return the public names that more than one module of fedlap defines, and those modules."""
    definitions = find_definitions(sorted(SRC.rglob("*.py")))
    return {name: files for name, files in sorted(definitions.items()) if len(files) > 1}


def main(arguments: list[str]) -> int:
    """Print every place and return 1 if there are any."""
    roots = [Path(argument) for argument in arguments] or [SRC]
    count = 0
    for file in sorted(f for root in roots for f in ([root] if root.is_file() else root.rglob("*.py"))):
        for line, complaint in check_file(file):
            count += 1
            print(f"{file}:{line}: {complaint}")
    inside = {
        str(file.relative_to(SRC))
        for root in roots
        for file in [*root.resolve().rglob("*.py"), root.resolve()]
        if file.is_relative_to(SRC)
    }
    for name, modules in find_duplicates().items():
        if inside.intersection(modules):
            count += 1
            print(f"'{name}' is defined in {', '.join(modules)}")
    print(f"{count} places to reword")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
