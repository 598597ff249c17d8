"""`odevit serve` on the command line: it starts a server, or exits with code 2 and an error."""

import socket
import sys
from pathlib import Path

import pytest
import yaml

from odevit.cli import main
from odevit.explorer import server

SPACE = Path(__file__).parents[2] / "examples/space"


@pytest.fixture
def started(monkeypatch):
    """(host, port) of every server that would have been started."""
    places = []
    monkeypatch.setattr(server, "run_server", lambda explorer, host, port: places.append((host, port)))
    return places


def test_serve_listens_on_this_machine_only(started):
    port = server.free_port("127.0.0.1")
    assert main(["serve", f"port={port}"]) == 0
    assert started == [("127.0.0.1", port)]


def test_serve_reports_a_port_in_use(started, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", f"port={port}"]) == 2
    error = capsys.readouterr().err
    assert f"port={port} cannot be listened to" in error
    assert "port=0 takes a free port" in error
    assert started == []


def test_serve_without_gradio_names_the_extra(started, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["serve", "port=0"]) == 2
    assert "pip install 'odevit[web]'" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize(
    "word", ["model=nowhere", "port=-1", "port=70000", "port=abc", "host=256.1.1.1", "share=true", "cat.png"]
)
def test_serve_refuses_invalid_arguments(word, started, capsys):
    assert main(["serve", "port=0", word]) == 2
    error = capsys.readouterr().err
    assert error.startswith("odevit serve: ")
    assert word.partition("=")[0] in error or word.partition("=")[2] in error
    assert started == []


def test_the_space_configuration_is_valid():
    _, front, _ = (SPACE / "README.md").read_text().split("---\n", 2)
    about = yaml.safe_load(front)
    assert about["sdk"] == "gradio"
    assert (SPACE / about["app_file"]).is_file()
    assert len(about["short_description"]) <= 60  # longer ones are refused
    compile((SPACE / "app.py").read_text(), "app.py", "exec")
    assert (SPACE / "requirements.txt").read_text().split() == ["odevit[web]"]
