"""Hooks of the documentation site: files outside of docs that pages link are copied into the site."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = "benches|examples|tests|scripts|CONTRIBUTING|README|CHANGELOG"
LINK = re.compile(rf"\]\((?P<up>(?:\.\./)+)(?P<path>(?:{OUTSIDE})[^)#]*)(?P<anchor>#[^)]*)?\)")
COPIED = "repository"
"""Folder of the site for the linked files."""


def linked(docs: Path) -> set[str]:
    """Return the paths, from the root of the repository, that pages link outside of docs."""
    return {match["path"] for page in docs.rglob("*.md") for match in LINK.finditer(page.read_text())}


def on_files(files: Files, config: Any) -> Files:
    """Add the linked files. A Markdown file is copied as text, since its own links lead elsewhere."""
    for path in sorted(linked(Path(config["docs_dir"]))):
        source = ROOT / path
        if source.is_file():
            content = source.read_bytes()
            files.append(File.generated(config, f"{COPIED}/{text_name(path)}", content=content))
    return files


def text_name(path: str) -> str:
    """Return the name of a copied file: `README.md` is copied as `README.md.txt`."""
    return f"{path}.txt" if path.endswith(".md") else path


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links that leave docs to the copies."""
    up = "../" * page.file.src_uri.count("/")
    return LINK.sub(lambda match: f"]({up}{COPIED}/{text_name(match['path'])})", markdown)
