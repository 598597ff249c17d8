"""`odevit serve` on the command line: one sentence and exit code 2 for whatever cannot be."""

import socket
import sys
from pathlib import Path

import pytest
import yaml

from odevit.cli import main
from odevit.explorer import server

SPACE = Path(__file__).parents[2] / "examples/space"


@pytest.fixture
def begun(monkeypatch):
    """(host, port) of everything that would have been served."""
    places = []
    monkeypatch.setattr(server, "run_server", lambda explorer, host, port: places.append((host, port)))
    return places


def test_it_serves_this_machine_alone(begun):
    port = server.free_port("127.0.0.1")
    assert main(["serve", f"port={port}"]) == 0
    assert begun == [("127.0.0.1", port)]


def test_a_port_that_is_taken(begun, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", f"port={port}"]) == 2
    said = capsys.readouterr().err
    assert f"port={port} cannot be listened to" in said
    assert "port=0 takes a free port" in said
    assert begun == []


def test_without_gradio(begun, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["serve", "port=0"]) == 2
    assert "pip install 'odevit[web]'" in capsys.readouterr().err
    assert begun == []


@pytest.mark.parametrize(
    "word", ["model=nowhere", "port=-1", "port=70000", "port=abc", "host=256.1.1.1", "share=true", "cat.png"]
)
def test_what_cannot_be_served(word, begun, capsys):
    assert main(["serve", "port=0", word]) == 2
    said = capsys.readouterr().err
    assert said.startswith("odevit serve: ")
    assert word.partition("=")[0] in said or word.partition("=")[2] in said
    assert begun == []


def test_the_space_says_what_it_runs():
    _, front, _ = (SPACE / "README.md").read_text().split("---\n", 2)
    about = yaml.safe_load(front)
    assert about["sdk"] == "gradio"
    assert (SPACE / about["app_file"]).is_file()
    assert len(about["short_description"]) <= 60  # longer ones are refused
    compile((SPACE / "app.py").read_text(), "app.py", "exec")
    assert (SPACE / "requirements.txt").read_text().split() == ["odevit[web]"]
