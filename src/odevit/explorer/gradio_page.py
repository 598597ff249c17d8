"""Explorer -> a Gradio page: one component, drawn in the browser, that asks the explorer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from odevit.explorer.explorer import Explorer

FRONT = Path(__file__).parent / "front"
FONTS = ["system-ui", "Segoe UI", "Roboto", "Helvetica", "Arial", "sans-serif"]
MONOSPACE = ["ui-monospace", "Menlo", "Consolas", "monospace"]
TITLE = "odevit explorer"


def make_page(explorer: Explorer) -> gr.Blocks:
    """The page. All frames of an image are sent at once, so that moving through time asks the server nothing."""
    questions = [
        explorer.open,
        explorer.receive,
        explorer.look,
        explorer.stability,
        explorer.perturb,
        explorer.film,
        explorer.figures,
    ]
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        gr.HTML(
            html_template=(FRONT / "explorer.html").read_text(),
            js_on_load=(FRONT / "explorer.js").read_text(),
            server_functions=[as_function(question) for question in questions],
            apply_default_css=False,
            elem_id="explorer",
        )
    return page


def launch(explorer: Explorer, **options: Any) -> tuple[Any, str, str]:
    """Serve the page on this machine alone: no telemetry, no tunnel, no font from elsewhere."""
    theme = gr.themes.Base(font=FONTS, font_mono=MONOSPACE)
    return make_page(explorer).launch(
        theme=theme,
        css=(FRONT / "explorer.css").read_text(),
        footer_links=[],
        share=False,
        ssr_mode=False,
        quiet=True,
        run_history=False,
        enable_monitoring=False,
        **options,
    )


def as_function(question: Any) -> Any:
    """A method as a function: Gradio marks what may be called from a page, and a method cannot be marked."""

    def ask(given: Any) -> Any:
        return question(given)

    ask.__name__ = question.__name__
    return ask
