"""A page in its folder, with every table and figure in other forms beside it."""

from pathlib import Path

from fedlap.errors import InputError
from fedlap.report.page.html import html
from fedlap.report.page.sections import BarsSection, FactsSection, Page, TableSection, TextSection
from fedlap.report.page.styles import places
from fedlap.report.page.table_formats import comma_separated, latex, markdown
from fedlap.storage.files import refuse_links, write_file

FORMS = {"md": markdown, "tex": latex}
PAGE = "page.html"


def write(page: Page, folder: Path) -> Path:
    """Write page.html, tables/NAME.md, .csv and .tex, and figures/NAME.png and .pdf; where the page is.

    The values behind bars are a table, too: tables/NAME.csv.
    """
    from fedlap.report.page.matplotlib_figures import pictures  # here, since a page alone needs no matplotlib

    refuse_links(folder, ("tables", "figures"))
    colours, seen = places(page), set[str]()
    for section in page.sections:
        if isinstance(section, TextSection | FactsSection):
            continue
        if section.name in seen or not section.name.replace("-", "").replace("_", "").isalnum():
            raise InputError(f"page: {section.name!r} names a section's files; take letters, each name once")
        seen.add(section.name)
        if isinstance(section, TableSection | BarsSection) and section.records is not None:
            made = comma_separated(section.records)
            write_file(folder / "tables" / f"{section.name}.csv", made.encode())
        if isinstance(section, TableSection):
            for form, text in FORMS.items():
                write_file(folder / "tables" / f"{section.name}.{form}", text(section).encode())
        else:
            for form, content in pictures(section, colours).items():
                write_file(folder / "figures" / f"{section.name}.{form}", content)
    write_file(folder / PAGE, html(page, beside=True).encode())
    return folder / PAGE
