"""Files of a page: the HTML file, and every table and figure in other formats."""

from pathlib import Path

from fedlap.errors import InputError
from fedlap.report.page.html import render_html
from fedlap.report.page.sections import FactsSection, Page, RecordedSection, TableSection, TextSection
from fedlap.report.page.styles import number_methods
from fedlap.report.page.table_formats import render_csv, render_latex, render_markdown
from fedlap.storage.files import refuse_links, write_file

TABLE_FORMATS = {"md": render_markdown, "tex": render_latex}
PAGE_FILE = "page.html"


def write_page(page: Page, folder: Path) -> Path:
    """Write page.html, tables/NAME.md, .csv and .tex, and figures/NAME.png and .pdf; return the page's path.

    Curves and figures of clients have their values in tables/NAME.csv, too; scores of every seed are in
    tables/NAME-by-seed.csv.
    """
    # Imported here, since Matplotlib takes long to load.
    from fedlap.report.page.matplotlib_figures import render_figures

    refuse_links(folder, ("tables", "figures"))
    colours, seen = number_methods(page), set[str]()
    for section in page.sections:
        if isinstance(section, TextSection | FactsSection):
            continue
        if section.name in seen or not section.name.replace("-", "").replace("_", "").isalnum():
            raise InputError(
                f"page: invalid or repeated section name {section.name!r}; use letters and digits, "
                "each name once"
            )
        seen.add(section.name)
        if isinstance(section, RecordedSection) and section.records is not None:
            text = render_csv(section.records)
            write_file(folder / "tables" / f"{section.name}.csv", text.encode())
        if isinstance(section, TableSection):
            if section.by_seed is not None:
                text = render_csv(section.by_seed)
                write_file(folder / "tables" / f"{section.name}-by-seed.csv", text.encode())
            for form, render in TABLE_FORMATS.items():
                write_file(folder / "tables" / f"{section.name}.{form}", render(section).encode())
        else:
            for form, content in render_figures(section, colours).items():
                write_file(folder / "figures" / f"{section.name}.{form}", content)
    write_file(folder / PAGE_FILE, render_html(page, with_files=True).encode())
    return folder / PAGE_FILE
