"""The explorer as a Space: the page of `odevit serve`, on the host and port of Gradio's environment variables."""

from odevit.explorer.explorer import Explorer
from odevit.explorer.server import launch

if __name__ == "__main__":
    launch(Explorer())
