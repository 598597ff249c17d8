"""The explorer: an image on its way through continuous depth, in the browser. `odevit serve` starts it.

Everything but `gradio_page` works without gradio: `Explorer` answers what the page asks with plain numbers and words,
and those come from functions of `film` and `analysis` that a notebook can call as well.
"""

from odevit.app.address import View as View
from odevit.app.explorer import Explorer as Explorer
from odevit.app.serving import serve as serve
from odevit.app.shelf import Shelf as Shelf
