"""A page in its folder, with every table and figure in other forms beside it."""

from pathlib import Path

from fedlap.errors import InputError
from fedlap.files import refuse_links, write_file
from fedlap.report.page.colours import places
from fedlap.report.page.html import html
from fedlap.report.page.sections import FactsSection, Page, TableSection, TextSection
from fedlap.report.page.tables import comma_separated, latex, markdown

FORMS = {"md": markdown, "csv": comma_separated, "tex": latex}
PAGE = "page.html"


def write(page: Page, folder: Path) -> Path:
    """Write page.html, tables/NAME.md, .csv and .tex, and figures/NAME.png and .pdf; where the page is."""
    from fedlap.report.page.pictures import pictures  # here, since a page alone needs no matplotlib

    refuse_links(folder, ("tables", "figures"))
    colours, seen = places(page), set[str]()
    for section in page.sections:
        if isinstance(section, TextSection | FactsSection):
            continue
        if section.name in seen or not section.name.replace("-", "").replace("_", "").isalnum():
            raise InputError(f"page: {section.name!r} names a section's files; take letters, each name once")
        seen.add(section.name)
        if isinstance(section, TableSection):
            for form, made in FORMS.items():
                write_file(folder / "tables" / f"{section.name}.{form}", made(section).encode())
        else:
            for form, content in pictures(section, colours).items():
                write_file(folder / "figures" / f"{section.name}.{form}", content)
    write_file(folder / PAGE, html(page, beside=True).encode())
    return folder / PAGE
