"""PNG -> <figure>: a picture inside the page, with its caption."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape

from odevit.page.shell import paragraph


def picture(figures: Mapping[str, bytes], name: str, caption: str, missing: str = "") -> str:
    """The PNG of that name with its caption, which is also what a screen reader says; or why it is missing."""
    if name not in figures:
        return paragraph(missing, small=True) if missing else ""
    source, said = f"data:image/png;base64,{b64encode(figures[name]).decode()}", escape(caption)
    image = f'<div class="picture"><img alt="{said}" src="{source}"></div>'
    return f'<figure id="{name}">{image}<figcaption>{said}</figcaption></figure>'
