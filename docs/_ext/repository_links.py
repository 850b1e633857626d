"""Links of pages to the repository outside `docs`: a file is a download, and a folder is text."""

import os
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class RepositoryLinks(SphinxTransform):
    """Replaces references that no page of the site can resolve."""

    default_priority = 100

    def apply(self, **options: Any) -> None:
        """Replace references to existing files and folders; others stay, and Sphinx warns of them."""
        docs, page = self.env.srcdir, Path(self.env.doc2path(self.env.docname))
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node["reftype"] != "myst":
                continue
            if node["refdomain"] == "doc":
                path = Path(f"{node['reftarget']}.md")  # absolute, if the file is outside of docs
            else:
                path = (page.parent / node["reftarget"].partition("#")[0]).resolve()
            if not path.is_absolute() or path.is_relative_to(docs):
                continue
            if path.is_file():
                target = os.path.relpath(path, page.parent)
                node.replace_self(addnodes.download_reference("", "", *node.children, reftarget=target))
            elif path.is_dir():
                node.replace_self(nodes.inline("", "", *node[0].children, classes=["folder"]))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform."""
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
