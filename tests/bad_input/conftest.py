"""A small workshop: pictures, a run, a teacher; and `typed`, which types a command there without starting the work."""

import resource
import shutil
import signal
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import yaml
from PIL import Image

import odevit.compare.runner
import odevit.explorer.film
import odevit.explorer.server
import odevit.hub
import odevit.report
import odevit.train.runner
from odevit.cli import main
from tests.tiny import tiny_model

CLASSES = ("circle", "square")
HYDRA = ("full_key", "object_type", "reference_type", "HYDRA_FULL", "Error merging", "mismatched", "ConfigAttr")
"""Words of hydra and omegaconf, which mean nothing to someone who typed a key."""


SECONDS, BYTES = 30, 4 * 2**30
"""What a command may take before it answers."""


class Begun(BaseException):
    """Everything was accepted, and the work would begin now."""


@dataclass(frozen=True)
class Outcome:
    """What came of a command: `refused` with a message, or else it began or did its work."""

    refused: bool
    message: str


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    """pictures/CLASS/*.png, run/ (a classifier), teacher/ (a stack), picture.png, text.txt."""
    folder = tmp_path_factory.mktemp("workshop")
    numbers = np.random.default_rng(0)
    for name in CLASSES:
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(12):
            pixels = numbers.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / name / f"{number}.png")
    Image.fromarray(pixels).save(folder / "picture.png")
    (folder / "text.txt").write_text("no picture\n")
    for name, depth in (("run", "ode"), ("teacher", "stacked")):
        model = tiny_model(hidden_size=8, image_size=8, num_register_tokens=0, depth=depth, num_labels=len(CLASSES))
        model.config.id2label = dict(enumerate(CLASSES))
        model.config.label2id = {label: number for number, label in enumerate(CLASSES)}
        model.save_pretrained(folder / name)
    (folder / "run/recipe.yaml").write_text(yaml.safe_dump({"data": {"source": str(folder / "pictures")}}))
    return folder


@pytest.fixture(autouse=True, scope="package")
def little_memory():
    """Nobody here is given more than 4 GiB beyond what the libraries take."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with open("/proc/self/statm") as numbers:
        data = int(numbers.read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (data + BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.fixture
def typed(workshop, tmp_path, monkeypatch, capsys):
    """Type a command as it is, but for the work that takes minutes."""

    def begin(*_, **__):
        raise Begun

    monkeypatch.chdir(tmp_path)
    for thing in workshop.iterdir():
        # A file is a copy: a command may well overwrite it.
        shutil.copy(thing, tmp_path) if thing.is_file() else (tmp_path / thing.name).symlink_to(thing)
    monkeypatch.setattr(odevit.hub, "TIMEOUT", 0.1)  # seconds that a hub out of reach is waited for
    monkeypatch.setattr(odevit.train.runner, "make_trainer", begin)
    # By its name: the package offers a function that is called like the module.
    monkeypatch.setattr(sys.modules["odevit.report.analysis"], "Study", begin)
    monkeypatch.setattr(odevit.explorer.film, "write", begin)
    monkeypatch.setattr(odevit.compare.runner, "all_systems", lambda: {"vit": "", "attractor": ""})
    monkeypatch.setattr(odevit.explorer.server, "run_server", begin)

    def late(*_):
        raise AssertionError(f"no answer after {SECONDS} s")

    def run(*words):
        signal.signal(signal.SIGALRM, late)
        signal.alarm(SECONDS)
        try:
            code = main(words)
        except Begun:
            code = 0
        finally:
            signal.alarm(0)
        said = capsys.readouterr().err
        message = said[max(0, said.find(f"odevit {words[0]}: ")) :]
        assert code in (0, 2)
        assert "Traceback" not in said
        if code == 2:
            assert message.startswith(f"odevit {words[0]}: ")
            assert len(message) < 2000, message
            assert not [word for word in HYDRA if word in message], message
        return Outcome(code == 2, message)

    return run
