"""Does a page stand alone?"""

import re
from base64 import b64decode

EMBEDDED = r"data:image/png;base64,([\w+/=]+)"


def pictures(page):
    """PNG by name, as a browser would find them in the page."""
    found = re.findall(rf'<figure id="(\w+)">.*?<img alt="[^"]+" src="{EMBEDDED}"', page)
    assert page.count("<img") == len(found), "every image lies inside the page, in a figure, and is described"
    return {name: b64decode(content, validate=True) for name, content in found}


def without_pictures(page):
    return re.sub(EMBEDDED, "", page)


def what_it_fetches(page):
    """Whatever would make a browser ask for more."""
    return re.findall(r"https?:|//|<script|<link|url\(|@import|src=\"[^\"]", without_pictures(page))
