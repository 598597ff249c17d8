"""run_all: processes that die, interruptions, and results in the order in which they come."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from odevit.compare import executor as running
from odevit.compare.executor import died_twice, run_all
from odevit.compare.plan import PlannedRun
from tests.train.start import SERVER


@pytest.fixture(autouse=True, scope="module")
def forked():
    """Processes fork from one that has imported everything, which a fresh one spends ten seconds on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", lambda kind: SERVER)
        yield


def entries_of(folder, *names):
    return [PlannedRun(name, 0, (str(folder),), 1) for name in names]


def until(file):
    """Wait for what another process writes."""
    end = time.monotonic() + 120
    while not (file.exists() and file.stat().st_size):
        assert time.monotonic() < end, f"{file} never came"
        time.sleep(0.02)


def lives(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def fate(entry, quiet=False):
    """What becomes of an entry, by its name; each try is a line of a file in the folder."""
    folder = Path(entry.words[0])
    file = folder / entry.system
    with file.open("a") as tries:
        tries.write(f"{os.getpid()}\n")
    others = {int(line) for path in folder.iterdir() for line in path.read_text().split()} - {os.getpid()}
    again = len(file.read_text().split()) > 1
    if entry.system == "unlucky" and not again:  # dies while the long one is computed
        until(folder / "long")
        os._exit(3)
    if entry.system == "doomed":
        os.kill(os.getpid(), signal.SIGKILL)
    if entry.system.startswith("endless"):
        time.sleep(3600)
    if entry.system == "long":  # is not done before two others have died
        until(folder / "doomed")
    return {"failure": None, "beside": [process for process in others if lives(process)]}


@pytest.fixture(scope="module")
def deaths(forked, tmp_path_factory):
    """Four entries and two processes: one dies once, another always. The results in their order, and all tries."""
    folder = tmp_path_factory.mktemp("deaths")
    entries = entries_of(folder, "unlucky", "long", "short", "doomed")
    results = [(entry.system, result) for entry, result in run_all(entries, 2, fate)]
    return results, {path.name: path.read_text().split() for path in folder.iterdir()}


def test_run_all_keeps_other_results_when_a_process_dies(deaths):
    results, tries = deaths
    assert {name for name, _ in results[:2]} == {"long", "short"}
    assert all(result["failure"] is None for _, result in results[:2])
    assert len(tries["long"]) == len(tries["short"]) == 1
    assert tries["short"][0] == tries["doomed"][0] != tries["unlucky"][0], "one process came for the one that died"


def test_run_all_retries_a_died_run_last_and_alone(deaths):
    results, tries = deaths
    name, result = results[2]
    assert (name, result["failure"], len(tries["unlucky"])) == ("unlucky", None, 2)
    assert result["beside"] == []


def test_run_all_reports_a_run_that_died_twice(deaths):
    results, tries = deaths
    name, result = results[3]
    assert (name, len(tries["doomed"]), len(results)) == ("doomed", 2, 4)
    assert result["failure"].startswith("its process was killed twice (signal 9, then signal 9 when it ran alone)")


def test_died_twice_names_signals_and_exit_codes():
    assert "(exit code 1, then signal 11 when it ran alone)" in died_twice(1, -11)


def test_run_all_leaves_no_process_after_an_interruption(tmp_path, monkeypatch):
    begun = []

    def interrupted(_):
        begun.extend(child.pid for child in multiprocessing.active_children())
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(run_all(entries_of(tmp_path, "short", "long"), 2, fate))
    assert len(begun) == 2
    assert not any(lives(process) for process in begun)


def endless(folder):
    list(run_all(entries_of(folder, "endless", "endless too"), 2, fate))


def test_workers_end_when_the_parent_is_killed(tmp_path):
    head = SERVER.Process(target=endless, args=(tmp_path,))
    head.start()
    files = [tmp_path / "endless", tmp_path / "endless too"]
    for file in files:
        until(file)
    head.kill()
    head.join()
    workers = [int(file.read_text()) for file in files]
    end = time.monotonic() + 60
    while any(map(lives, workers)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(lives, workers))
