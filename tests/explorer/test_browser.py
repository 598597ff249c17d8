"""Chromium on the page of `odevit serve`: every control by mouse and keyboard, no request to other machines."""

import json
import os
import re
import shutil
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest

from odevit.explorer.server import free_port, serve
from tests.explorer.strange_files import STRANGE

gradio = pytest.importorskip("gradio", reason="browser tests need gradio: pip install 'odevit[web]'")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="browser tests need playwright: pip install 'odevit[dev]'"
)
httpx = pytest.importorskip("httpx")

expect = playwright.expect
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="browser tests need Chromium: apt-get install chromium, or CHROMIUM=/path/to/chrome"
)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]
TIMEOUT = 60_000
"""Milliseconds to wait for anything; generous, for busy machines."""
expect.set_options(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def address(model_folder):
    """The URL of `odevit serve` in a folder with runs/; in this process, because importing torch takes seconds."""
    port, here = free_port("127.0.0.1"), Path.cwd()
    where = f"http://127.0.0.1:{port}"
    os.chdir(model_folder)
    try:
        Thread(target=serve, kwargs={"port": port}, daemon=True).start()
        end = time.monotonic() + 2 * TIMEOUT / 1000
        while not answers(where):
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.1)
    finally:
        os.chdir(here)
    yield where
    gradio.close_all(verbose=False)


def answers(where):
    try:
        return httpx.get(f"{where}/config", timeout=TIMEOUT / 1000).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=2 * TIMEOUT)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser, address):
    """Open the page with a query and wait for its prediction; at the end, check for errors and outside requests."""
    requests, errors, contexts = [], [], []

    def open_page(query="", width=1280, wait=True):
        context = browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=True)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT)
        page.set_default_navigation_timeout(TIMEOUT)
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address + "/" + query, wait_until="commit")
        if wait:
            expect(page.locator(".xp-answer").first).not_to_be_empty()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not errors
    assert not [url for url in requests if not url.startswith((address, "data:", "blob:"))]


def ask(address, name, question):
    """The response to one request, without a page."""
    config = httpx.get(f"{address}/config", timeout=60).json()
    component = next(part["id"] for part in config["components"] if part["props"].get("elem_id") == "explorer")
    body = {"data": question, "component_id": component, "fn_name": name, "session_hash": "test"}
    return httpx.post(f"{address}/gradio_api/component_server", json=body, timeout=60)


def wait_for_stability(page):
    """Wait for the measurement of stability."""
    text = page.locator("[data-card=path] .xp-text").first
    expect(text).to_contain_text(re.compile("Lyapunov"))
    return text


def test_the_page_shows_a_prediction_and_its_stability(visit):
    page = visit()
    expect(page.locator(".xp-answer")).to_have_text("frog")
    expect(page.locator(".xp-nfe")).to_have_text("12")
    expect(page.locator(".xp-summary")).to_contain_text("same prediction as with the model's own settings")
    text = wait_for_stability(page)
    expect(text).to_contain_text("contraction radius")
    assert page.title() == "odevit explorer"


def test_time_head_and_outline_need_no_request(visit):
    page = visit()
    wait_for_stability(page)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    now, shares = page.locator(".xp-now"), page.locator(".xp-legend b").first
    before = shares.inner_text()
    page.locator("[data-key=t]").focus()
    page.keyboard.press("Home")
    expect(now).to_have_text("t = 0.00, 0.00 horizons")
    assert shares.inner_text() != before
    page.keyboard.press("ArrowRight")
    expect(now).to_have_text("t = 0.06, 0.01 horizons")
    outlined = page.locator(".xp-map").get_attribute("data-outlined")
    page.locator("[data-key=mass]").focus()
    page.keyboard.press("End")
    expect(page.locator(".xp-map")).to_have_attribute("data-outlined", "64")
    assert int(outlined) < 64
    for head in ("rollout", "3"):
        page.get_by_label("Attention of").select_option(head)
        expect(page).to_have_url(re.compile(f"head={head}"))
    assert not asked


def test_play_stops_at_the_end_and_restarts(visit):
    page = visit("?t=1.5")
    button, now = page.locator(".xp-play"), page.locator(".xp-now")
    button.focus()
    page.keyboard.press("Enter")
    expect(now).to_have_text("t = 12.00, 2.00 horizons")
    expect(button).to_have_text(re.compile("Play"))  # it stops there by itself
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(now).not_to_have_text("t = 12.00, 2.00 horizons")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    stopped = now.inner_text()
    page.locator("[data-key=mass]").focus()
    page.keyboard.press("Home")
    expect(now).to_have_text(stopped)


def test_solver_steps_and_horizon_integrate_again(visit):
    page = visit()
    page.get_by_label("Solver", exact=True).select_option("rk4")
    expect(page.locator(".xp-nfe")).to_have_text("48")
    page.locator("[data-key=steps]").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".xp-nfe")).to_have_text("52")
    page.locator("[data-key=horizon]").focus()
    page.keyboard.press("End")
    expect(page.locator(".xp-summary")).to_contain_text("T = 24")
    page.get_by_role("button", name="Model defaults").first.click()
    expect(page.locator(".xp-nfe")).to_have_text("12")
    expect(page).to_have_url(re.compile(r"/$"))


def test_an_uploaded_image_is_classified_and_not_in_the_url(visit, address, cat):
    page = visit()
    before = page.locator(".xp-legend").inner_text()
    page.locator("#xp-file").set_input_files(cat)
    expect(page.locator(".xp-legend")).not_to_have_text(before, use_inner_text=True)
    expect(page.locator(".xp-thumb")).to_have_attribute("src", re.compile("^data:image/png"))
    assert "picture" not in page.url
    page.get_by_role("button", name="Drawing: ship").click()
    expect(page.locator(".xp-answer")).to_have_text("ship")
    expect(page).to_have_url(re.compile("picture=ship"))


def test_images_can_be_dropped_and_pasted(visit, cat):
    page = visit()
    give = """([kind, bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "cat.png", {type: "image/png"}));
        const [place, event] = kind === "drop"
            ? [document.querySelector(".xp-drop"), new DragEvent("drop", {dataTransfer: data, bubbles: true})]
            : [document, new ClipboardEvent("paste", {clipboardData: data, bubbles: true})];
        place.dispatchEvent(event);
    }"""
    for kind in ("drop", "paste"):
        page.get_by_role("button", name="Drawing: ship").click()
        expect(page.get_by_role("button", name="Drawing: ship")).to_have_attribute("aria-pressed", "true")
        page.evaluate(give, [kind, list(cat.read_bytes())])
        expect(page.get_by_role("button", name="Drawing: ship")).to_have_attribute("aria-pressed", "false")


def test_a_clicked_patch_is_perturbed_and_the_paths_converge(visit):
    page = visit()
    card = page.locator("[data-card=divergence]")
    page.locator(".xp-map").click(position={"x": 150, "y": 150})
    expect(card.locator(".xp-text")).to_contain_text("The two paths converge")
    expect(card.locator("svg path.curve")).to_have_count(1)
    expect(page.locator("[data-card=path] path.other")).to_have_count(1)
    expect(page).to_have_url(re.compile("row=3.*column=3"))
    card.get_by_role("button", name="Mask it").click()
    expect(card.locator(".xp-text")).to_contain_text(re.compile("fixed point of its own|come closer"))
    card.get_by_role("button", name="Clear").click()
    expect(card.locator(".xp-text")).to_be_empty()
    page.locator(".xp-map").focus()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    expect(page).to_have_url(re.compile("row=3.*column=3"))
    expect(card.locator(".xp-text")).to_contain_text("The two paths")
    page.keyboard.press("Escape")
    expect(card.locator(".xp-text")).to_be_empty()


def test_a_second_model_is_shown_beside_the_first(visit):
    page = visit()
    page.get_by_label("Second model").select_option("cifar10")
    expect(page.locator(".xp-side")).to_have_count(2)
    page.get_by_label("Second solver").select_option("euler")
    expect(page.locator(".xp-side").nth(1).locator(".xp-summary")).to_contain_text("euler, 12 steps")
    page.get_by_label("Model", exact=True).select_option("runs/student")
    expect(page.locator("[data-side=first] h2")).to_have_text("runs/student")
    expect(page.locator("[data-side=first] rect.layer")).to_have_count(4)
    page.get_by_label("Second model").select_option("runs/student/teacher")
    expect(page.locator(".xp-side").nth(1).locator(".xp-summary")).to_contain_text("3 layers")
    expect(page.locator(".xp-side").nth(1).locator("[data-card=path] .xp-text")).to_contain_text("no ODE")
    page.get_by_label("Second model").select_option("none")
    expect(page.locator(".xp-side")).to_have_count(1)


def test_downloads_contain_what_the_page_shows(visit, tmp_path, monkeypatch):
    monkeypatch.setattr("odevit.explorer.explorer.FILM_FRAMES", 3)  # the server is a thread of this process
    page = visit("?model=runs/small&row=1&column=1")
    expect(page.locator("[data-card=divergence] .xp-text")).to_contain_text("The two paths")
    wait_for_stability(page)
    files = {}
    for name in ("Numbers (JSON)", "Figures (ZIP)", "Film (GIF)"):
        with page.expect_download(timeout=2 * TIMEOUT) as waiting:
            page.get_by_role("button", name=name).click()
        files[name] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(files[name])
    numbers = json.loads(files["Numbers (JSON)"].read_text())
    assert numbers["state"]["model"] == "runs/small"
    (side,) = numbers["sides"]
    assert {"probabilities", "attention", "path", "prediction", "stability", "divergence"} <= {*side}
    assert side["divergence"]["text"]
    assert "path.png" in zipfile.ZipFile(files["Figures (ZIP)"]).namelist()
    assert files["Film (GIF)"].read_bytes().startswith(b"GIF89a")


def test_a_shared_url_shows_the_same_page(visit):
    page = visit("?picture=ship&solver=heun&steps=6&t=0.5&head=2&mass=0.3&row=2&column=5&other=runs%2Fsmall")
    expect(page.locator(".xp-side")).to_have_count(2)
    expect(page.locator("[data-side=first] .xp-summary")).to_contain_text("heun, 6 steps")
    expect(page.locator(".xp-now")).to_have_text("t = 3.00, 0.50 horizons")
    expect(page.get_by_label("Attention of")).to_have_value("2")
    expect(page.locator("[data-side=first] [data-card=divergence] .xp-text")).to_contain_text("The two paths")
    again = visit(page.url[page.url.index("?") :])
    for place in ("[data-side=first] .xp-legend", "[data-side=first] [data-card=divergence] .xp-text", ".xp-now"):
        expect(page.locator(place)).not_to_be_empty()
        expect(again.locator(place)).to_have_text(page.locator(place).inner_text(), use_inner_text=True)


def test_invalid_parts_of_a_url_are_ignored_with_a_message(visit):
    page = visit("?model=../../etc/passwd&solver=%3Cscript%3Ealert(1)%3C/script%3E&steps=1e9&t=nan&picture=ship")
    expect(page.locator(".xp-answer")).to_have_text("ship")
    expect(page.locator(".xp-notice")).to_contain_text("were ignored")
    assert page.locator("script", has_text="alert(1)").count() == 0


def test_unusual_files_get_a_message_or_a_prediction(visit):
    page = visit()
    frog, notice = page.get_by_role("button", name="Drawing: frog"), page.locator(".xp-notice")
    for name, (content, readable) in STRANGE.items():
        page.locator("#xp-file").set_input_files({"name": name, "mimeType": "image/jpeg", "buffer": content})
        if readable:
            expect(frog).to_have_attribute("aria-pressed", "false")
            expect(notice).to_be_hidden()
            frog.click()
            expect(frog).to_have_attribute("aria-pressed", "true")
        else:
            expect(notice).to_contain_text(name)
        expect(page.locator(".xp-answer")).not_to_be_empty()


def test_every_control_has_a_label_and_is_reached_by_tab(visit):
    page = visit()
    unnamed = page.evaluate("""() => {
        const named = (node) => node.getAttribute("aria-label") || node.labels?.length || node.textContent.trim();
        const nodes = document.querySelectorAll(".xp :is(button, select, input, canvas[tabindex], svg)");
        return [...nodes].filter((node) => !named(node)).map((node) => node.outerHTML.slice(0, 80));
    }""")
    assert not unnamed
    reached = set()
    page.locator("#xp-file").focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.key || document.activeElement.className"))
    assert {
        "model",
        "solver",
        "steps",
        "horizon",
        "other",
        "t",
        "head",
        "mass",
        "xp-map",
        "xp-button xp-play",
    } <= reached


def test_the_page_fits_a_narrow_screen(visit):
    page = visit("?other=runs%2Fsmall", width=400)
    expect(page.locator(".xp-side")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_ten_users_at_once_get_their_own_predictions(address):
    pictures = ["frog", "ship", "truck", "airplane", "automobile"] * 2
    with ThreadPoolExecutor(10) as users:
        answers = list(
            users.map(lambda name: ask(address, "trace", {"model": "cifar10", "picture": name}).json(), pictures)
        )
    alone = {name: ask(address, "trace", {"model": "cifar10", "picture": name}).json() for name in {*pictures}}
    for name, answer in zip(pictures, answers, strict=True):
        assert answer["probabilities"] == alone[name]["probabilities"]
        assert answer["attention"] == alone[name]["attention"]


def test_the_server_serves_no_files(address, model_folder):
    for path in (
        "/etc/passwd",
        str(model_folder / "runs/small/config.json"),
        "../../../../etc/passwd",
        "runs/small/config.json",
    ):
        assert httpx.get(f"{address}/gradio_api/file={path}", timeout=60).status_code in (403, 404)
    answer = ask(address, "trace", {"model": "/etc", "picture": "frog"}).json()
    assert "unknown model" in answer["problem"]
    assert ask(address, "__init__", {}).status_code == 404
