"""The site is built without a warning, its links lead somewhere, and its pages load nothing else."""

import json
import re
from functools import cache
from urllib.parse import unquote, urlsplit

import pytest

from built_site import (
    ROOT,
    Page,
    build_site,  # noqa: F401 — a fixture
)

pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("site")]


def list_pages(site):
    return sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)


def test_every_page_is_built(site):
    sources = [path for kind in ("*.md", "*.ipynb") for path in (ROOT / "docs").rglob(kind)]
    wanted = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in sources}
    wanted = {path for path in wanted if path.parts[0] not in ("_static", "README.html")}
    assert wanted <= {path.relative_to(site) for path in list_pages(site)}
    assert len(wanted) > 30


def test_no_link_inside_the_site_is_dead(site):
    read, dead = cache(Page.read), []
    for path in list_pages(site):
        for link in read(path).links:
            address = urlsplit(link)
            if address.scheme in ("http", "https", "mailto"):
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            target = target / "index.html" if target.is_dir() else target
            place = unquote(address.fragment)
            if not target.is_file() or (
                place and target.suffix == ".html" and place not in read(target).places
            ):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert dead == []


def test_nothing_is_loaded_from_elsewhere(site):
    for path in list_pages(site):
        for address in Page.read(path).loaded:
            parts = urlsplit(address)
            assert parts.scheme in ("", "data"), f"{path}: {address}"
            assert parts.netloc == "", f"{path}: {address}"
            if parts.path:
                assert (path.parent / unquote(parts.path)).is_file(), f"{path}: {address}"
    for path in site.rglob("*.css"):
        for address in re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", path.read_text("utf-8")):
            assert not re.match(r"(https?:)?//", address), f"{path}: {address}"
            if not address.startswith(("data:", "#")):
                assert (path.parent / urlsplit(address).path).is_file(), f"{path}: {address}"


def test_every_page_has_a_title_and_one_first_heading(site):
    for path in list_pages(site):
        text = path.read_text("utf-8")
        assert re.search(r"<title>[^<]+</title>", text), path
        if path.name not in ("search.html", "genindex.html", "py-modindex.html"):
            assert len(re.findall(r"<h1[ >]", text)) == 1, path


def test_output_has_no_temporary_paths(site):
    for path in list_pages(site):
        assert "ipykernel_" not in path.read_text("utf-8"), path
    assert "<pre>DataWarning: " in re.sub(
        r"</?span[^>]*>", "", (site / "start" / "first-models.html").read_text("utf-8")
    )


def test_scores_and_verdicts_stay_in_one_line(site):
    for path in (site / "results").glob("*.html"):
        cells = re.findall(r"<td[^>]*>(.*?)</td>", path.read_text("utf-8"), re.S)
        assert cells, path
        assert not [cell for cell in cells if re.search(r" [±★]|± |[✓✗] / ", cell)], path


def test_commands_are_highlighted_as_those_of_a_shell(site):
    text = (site / "index.html").read_text("utf-8")
    (block,) = re.findall(r'<div class="highlight-bash.*?</div>', text, re.S)
    assert "fedlap" in block
    assert "highlight-default" not in text


def test_words_of_the_search_belong_to_pages():
    script = (ROOT / "docs" / "_static" / "search_scorer.js").read_text("utf-8")
    first_pages = json.loads(re.search(r"FIRST_PAGES = (\{.*?\n\});", script, re.S)[1])
    for page in first_pages:
        assert any((ROOT / "docs" / f"{page}{kind}").exists() for kind in (".md", ".ipynb")), page
    words = [word for found in first_pages.values() for word in found]
    assert len(words) == len(set(words))
    assert all(word == " ".join(word.lower().split()) for word in words)


def test_formulas_are_vendored_with_their_licence():
    folder = ROOT / "docs" / "_static" / "katex"
    assert "MIT License" in (folder / "LICENSE").read_text("utf-8")
    used = set(re.findall(r"url\(fonts/([\w-]+\.woff2)\)", (folder / "katex.min.css").read_text("utf-8")))
    assert used == {path.name for path in (folder / "fonts").iterdir()}
