"""BibTeX entries, from references that are written as "Authors. Title. Venue, year."."""

import re
import unicodedata

from fedlap import __version__

SOFTWARE_TEXT = "fedlap: federated multi-task learning with Laplacian regularisation"
REFERENCE = re.compile(
    r"(?P<authors>.+?[^\W\d_]{2})\. (?P<title>.+?)\. (?P<venue>.+?),? (?P<year>(?:19|20)\d\d)\."
    r"(?: doi:(?P<doi>\S+)\.)?"
)
INITIALS = re.compile(r"((?:[A-Z]\.[ -]?)+) ?(.+)")
VOLUME = re.compile(r"(.+) (\d+)\((\d+)\)")
SPECIAL_CHARACTERS = re.compile(r"[&%$#_{}]")


def describe_software() -> str:
    """Return the BibTeX entry of this version of fedlap."""
    fields = {
        "title": f"{{{SOFTWARE_TEXT}}}",
        "howpublished": "Python package",
        "note": f"Version {__version__}",
    }
    return _format_entry("misc", "fedlap", fields)


def format_bibtex(text: str) -> list[str]:
    """Return the BibTeX entries of one or several references; other text becomes a note."""
    found = list(REFERENCE.finditer(text))
    if not found or "".join(match[0] for match in found).replace(" ", "") != text.replace(" ", ""):
        return [_format_entry("misc", _simplify(text)[:20], {"note": _escape(text)})]
    return [_format_reference(match) for match in found]


def _format_reference(match: re.Match[str]) -> str:
    authors = [_split_name(name) for name in re.split(r", | and ", match["authors"].strip())]
    title, year = match["title"], match["year"]
    words = (_simplify(word) for word in re.split(r"[\s-]", title))
    word = next((word for word in words if word not in ("a", "an", "the", "")), "")
    kind, venue = _describe_venue(match["venue"])
    fields = {
        "author": " and ".join(
            f"{surname}, {initials}" if initials else surname for surname, initials in authors
        ),
        "title": f"{{{_escape(title)}}}",
        **{field: _escape(value) for field, value in venue.items()},
        "year": year,
        **({"doi": match["doi"]} if match["doi"] else {}),
    }
    return _format_entry(kind, f"{_simplify(authors[0][0])}{year}{word}", fields)


def _describe_venue(venue: str) -> tuple[str, dict[str, str]]:
    """Return the kind of an entry, and its fields about the place of publication."""
    volume = VOLUME.fullmatch(venue)
    if volume is not None:
        return "article", {"journal": volume[1], "volume": volume[2], "number": volume[3]}
    if venue.startswith("arXiv:"):
        return "misc", {"eprint": venue.removeprefix("arXiv:"), "archiveprefix": "arXiv"}
    if venue.startswith("Technical report, "):
        return "techreport", {"institution": venue.removeprefix("Technical report, ")}
    if venue.endswith("Press"):
        return "book", {"publisher": venue}
    if venue.endswith("Repository") or venue.startswith("R package"):
        return "misc", {"howpublished": venue}
    if venue.startswith("IEEE T") or "Journal" in venue:
        return "article", {"journal": venue}
    return "inproceedings", {"booktitle": venue}


def _split_name(name: str) -> tuple[str, str]:
    """Return the surname and the initials of an author."""
    found = INITIALS.fullmatch(name)
    return (name, "") if found is None else (found[2], found[1].strip())


def _simplify(text: str) -> str:
    """Return the letters and digits of a text, in lower case and without accents, for a key."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]", "", plain.lower())


def _escape(text: str) -> str:
    return SPECIAL_CHARACTERS.sub(lambda found: f"\\{found[0]}", text)


def _format_entry(kind: str, key: str, fields: dict[str, str]) -> str:
    lines = "".join(f"  {field} = {{{value}}},\n" for field, value in fields.items())
    return f"@{kind}{{{key},\n{lines}}}"
