"""What the package index shows: the README, with links that work from elsewhere.

Links in README.md are relative, so that they work in a checkout. Where the files lie on the web is in pyproject.toml,
under [project.urls], and nowhere else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>(?!https?://|#|mailto:)[^)\s]+)\)")
_SOURCE = re.compile(r'(?P<before><img[^>]* src=")(?P<path>(?!https?://)[^"]+)')


def with_absolute_links(text: str, repository: str) -> str:
    """A Markdown text whose links into the repository are addresses: pages to read, pictures as they are.

    >>> with_absolute_links("[a](docs/a.md) ![b](b.png)", "https://example.org/x/x")
    '[a](https://example.org/x/x/blob/main/docs/a.md) ![b](https://example.org/x/x/raw/main/b.png)'
    """

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found["image"] else "blob"
        return f"{found['image']}[{found['text']}]({repository}/{kind}/main/{found['path']})"

    return _SOURCE.sub(rf"\g<before>{repository}/raw/main/\g<path>", _LINK.sub(link, text))


class CustomMetadataHook(MetadataHookInterface):
    """Called by hatchling when it builds."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in the README."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        absolute = with_absolute_links(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute}
