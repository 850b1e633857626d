"""Methods stay short enough to be read: lines of code of each class, without docstrings and comments."""

import ast
import inspect
import io
import tokenize

import pytest

from fedlap.algorithms import ALGORITHMS
from fedlap.algorithms.local_work import DEFAULT_LR

MOST_LINES = 60
EXCEPTIONS = {
    "mocha": 100,  # a dual method has more states and more settings
    "gtvmin": 80,  # dual vectors and a gap, for one peer and for all
    "dfedu-learned": 90,  # models and edges have steps and settings, for one peer and for all
}
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def count_code_lines(text):
    """Count the lines of a text that hold code; docstrings, comments and blank lines do not count."""
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)
    }
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - docstrings)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_is_short(name):
    lines = count_code_lines(inspect.getsource(ALGORITHMS[name]))
    most = EXCEPTIONS.get(name, MOST_LINES)
    assert lines <= most, f"{ALGORITHMS[name].__name__} has {lines} lines of code; expected at most {most}"


def test_only_code_is_counted():
    text = 'class A:\n    """Say.\n\n    More.\n    """\n\n    # why\n    x = [\n        1,  # one\n    ]\n'
    assert count_code_lines(text) == 4


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_default_length_of_a_step_is_common(name):
    settings = inspect.signature(ALGORITHMS[name]).parameters
    assert ("lr" in settings) == ALGORITHMS[name].traits.has_lr
    assert "lr" not in settings or settings["lr"].default == DEFAULT_LR
