"""Speed of the explorer: first paint, a new integration, memory over 200 of them.

    OMP_NUM_THREADS=1 python -m benchmarks.explorer benchmarks/explorer.json

Serves the bundled model on a free port, opens the page in Chromium (CHROMIUM=PATH, or the one on the PATH), and
integrates anew with another number of steps each time.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import gradio
import psutil
import torch
from playwright.sync_api import Browser, expect, sync_playwright

from odevit.explorer.explorer import Explorer
from odevit.explorer.server import free_port, launch
from odevit.train.record import device_name, versions

VISITS, INTEGRATIONS, MANY = 5, 20, 200
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
MEBIBYTE = 2**20


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 1),
        "least": round(min(values), 1),
        "most": round(max(values), 1),
    }


def visited(browser: Browser, address: str) -> dict[str, float]:
    """Milliseconds from the request for the page to its first content, and to its first answer."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    began = time.perf_counter()
    page.goto(address)
    expect(page.locator(".xp-answer")).not_to_be_empty(timeout=60_000)
    answered = 1000 * (time.perf_counter() - began)
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.context.close()
    return {"paint": painted, "answer": answered}


def integrated(browser: Browser, address: str) -> list[float]:
    """Milliseconds from another number of steps to the new pictures, as the page itself takes the time."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(address)
    expect(page.locator("[data-card=path] .xp-text")).to_contain_text("Lyapunov", timeout=60_000)
    trips = []
    page.locator("[data-key=steps]").focus()
    for n in range(INTEGRATIONS):
        # 13 and 12 in turn: as much work as the model's own steps.
        page.keyboard.press("ArrowLeft" if n % 2 else "ArrowRight")
        expect(page.locator(".xp-nfe")).to_have_text("12" if n % 2 else "13", timeout=60_000)
        trips.append(float(page.locator(".xp-side").get_attribute("data-round-trip") or "nan"))
        expect(page.locator("[data-card=path] .xp-text")).to_contain_text("Lyapunov", timeout=60_000)
    page.context.close()
    return trips


def alone(explorer: Explorer) -> dict[str, Any]:
    """The same question without a page, and what 200 of them leave in memory after 20 to warm up."""
    question = {"model": "cifar10", "picture": "frog"}
    process, times = psutil.Process(), []
    for n in range(MANY + 20):
        if n == 20:
            gc.collect()
            before = process.memory_info().rss
        explorer.perturb({**question, "row": n % 8, "column": 3})
        began = time.perf_counter()
        explorer.trace(question)
        times.append(1000 * (time.perf_counter() - began))
    gc.collect()
    grown = (process.memory_info().rss - before) / MEBIBYTE
    return {"look_ms": spread(times[20:]), "memory_growth_mib": round(grown, 1), "integrations": MANY}


def main() -> None:
    out = Path(sys.argv[1])
    explorer, port = Explorer(), free_port("127.0.0.1")
    _, address, _ = launch(explorer, server_name="127.0.0.1", server_port=port, prevent_thread_lock=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        visits = [visited(browser, address) for _ in range(VISITS)]
        trips = integrated(browser, address)
        version = browser.version
        browser.close()
    threads = torch.get_num_threads()
    record = {
        "command": f"OMP_NUM_THREADS={threads} python -m benchmarks.explorer {out.as_posix()}",
        "device": device_name(torch.device("cpu")),
        "load_average": round(os.getloadavg()[0], 1),
        "versions": {**versions(), "gradio": gradio.__version__, "chromium": version},
        "first_paint_ms": spread([visit["paint"] for visit in visits]),
        "first_answer_ms": spread([visit["answer"] for visit in visits]),
        "new_integration_in_the_page_ms": spread(trips),
        "without_a_page": alone(explorer),
    }
    out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))
    gradio.close_all(verbose=False)


if __name__ == "__main__":
    main()
