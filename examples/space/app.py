"""The explorer as a Space: the page of `odevit serve`, on the host and port that Gradio is told by its surroundings."""

from odevit.app import Explorer
from odevit.app.gradio_page import launch

if __name__ == "__main__":
    launch(Explorer())
