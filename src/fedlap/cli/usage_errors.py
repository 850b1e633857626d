"""Messages about values of options, with the value and what was expected."""

from typing import Any, Final

# What an option expects, by the type of pydantic's error.
EXPECTED: Final = {
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_parsing": "a number",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
}


def describe_usage_error(error: Any) -> str:
    """Return the message of a usage error; for a value that cannot be used, what was expected instead."""
    message = str(error.format_message())
    problems: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if not problems or problems[0]["type"] not in EXPECTED:
        return message
    problem = problems[0]
    expected = EXPECTED[problem["type"]].format(**problem.get("ctx", {}))
    return f"{message.removesuffix(problem['msg'])}{problem['input']}; expected {expected}"
