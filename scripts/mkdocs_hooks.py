"""Hooks of the documentation site.

If a page links to a file outside of docs/, the hooks copy this file into the site.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = "benches|examples|skills|tests|scripts|CONTRIBUTING|README|CHANGELOG"
LINK = re.compile(rf"\]\((?P<up>(?:\.\./)+)(?P<path>(?:{OUTSIDE})[^)#]*)(?P<anchor>#[^)]*)?\)")
COPIED = "repository"
"""Folder of the site for the linked files."""


def linked(docs: Path) -> set[str]:
    """Return the files outside of docs/ that pages in docs/ link to, as paths relative to the repository's
    root."""
    return {match["path"] for page in docs.rglob("*.md") for match in LINK.finditer(page.read_text())}


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside of docs/ that pages link to. Markdown files are added as plain text, because
    their relative links would break."""
    for path in sorted(linked(Path(config["docs_dir"]))):
        source = ROOT / path
        if source.is_file():
            content = source.read_bytes()
            files.append(File.generated(config, f"{COPIED}/{text_name(path)}", content=content))
    return files


def text_name(path: str) -> str:
    """Return the path of a file's copy in the site. A Markdown file such as `README.md` becomes
    `README.md.txt`."""
    return f"{path}.txt" if path.endswith(".md") else path


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change links to files outside of docs/, so that they lead to the copies of these files in the site."""
    up = "../" * page.file.src_uri.count("/")
    return LINK.sub(lambda match: f"]({up}{COPIED}/{text_name(match['path'])})", markdown)
