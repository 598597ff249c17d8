"""A film has the frames it should have, shows what the story says, and destroys nothing."""

import json
import shutil
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor
from transformers import ViTImageProcessorPil

from odevit.analysis.subject import Subject
from odevit.distill import OdeEncoderConfig, get_ode_model
from odevit.explore import explore, film
from odevit.explore.frames import Frames, draw_strip
from odevit.explore.overlay import _boundary, enlarged
from odevit.explore.plots import COLOURS
from odevit.explore.story import tell
from tests.distill.zoo import make
from tests.explore.test_story import picture
from tests.model.tiny import tiny_model

CAT, LAST = shutil.which("cat"), "for last; do :; done"
"""For scripts without a PATH: copy what comes in, and find the last argument."""


@pytest.fixture
def model(tmp_path):
    tiny_model(steps=3, horizon=1.5).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def image(tmp_path):
    picture().save(tmp_path / "noise.png")
    return tmp_path / "noise.png"


@pytest.fixture
def no_ffmpeg(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


def frames_of(path):
    with Image.open(path) as gif:
        for n in range(gif.n_frames):
            gif.seek(n)
            yield gif.convert("RGB")


def story(**overrides):
    return tell(Subject.of(tiny_model(**{"steps": 3, **overrides})), picture(), "noise")


def fake_ffmpeg(folder, script):
    """A program of that name: what is tested is how it is called and what is made of its answer."""
    folder.mkdir()
    program = folder / "ffmpeg"
    program.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def test_a_film_has_ten_frames_a_second_that_differ_in_time(model, image, tmp_path, no_ffmpeg):
    gif, png = explore([image], model=model, out=tmp_path / "out", seconds=0.8)
    frames = list(frames_of(gif))
    assert len(frames) == 8
    assert {frame.size for frame in frames} == {(800, 320)}
    assert len({frame.tobytes() for frame in frames}) == 8
    assert gif.stat().st_size < film.GIF_LIMIT
    with Image.open(png) as strip:
        assert strip.width > 5 * strip.height, "the image and six moments side by side"


def test_without_ffmpeg_there_is_a_gif_and_a_line_that_says_so(model, image, tmp_path, no_ffmpeg, capsys):
    written = explore([image], model=model, out=tmp_path / "out", seconds=0.2)
    assert [path.name for path in written] == ["noise.gif", "noise.png"]
    assert all(path.exists() for path in written)
    assert "no ffmpeg on the PATH" in capsys.readouterr().out


def test_with_ffmpeg_every_pixel_of_every_frame_is_handed_to_it(model, image, tmp_path, monkeypatch, capsys):
    script = f'{CAT} > {tmp_path}/raw; echo "$@" > {tmp_path}/said; {LAST}; echo film > "$last"'
    monkeypatch.setenv("PATH", str(fake_ffmpeg(tmp_path / "bin", script)))
    written = explore([image], model=model, out=tmp_path / "out", seconds=0.3)
    assert [path.name for path in written] == ["noise.gif", "noise.mp4", "noise.png"]
    assert (tmp_path / "raw").stat().st_size == 3 * 800 * 320 * 3
    assert "-s 800x320" in (tmp_path / "said").read_text()
    assert capsys.readouterr().out == ""


def test_what_ffmpeg_complains_of_is_said_and_nothing_half_written_stays(model, image, tmp_path, monkeypatch):
    script = f'{CAT} > {tmp_path}/raw; {LAST}; echo half > "$last"; echo no codec >&2; exit 1'
    monkeypatch.setenv("PATH", str(fake_ffmpeg(tmp_path / "bin", script)))
    with pytest.raises(ValueError, match=r"ffmpeg could not write .*noise\.mp4: no codec"):
        explore([image], model=model, out=tmp_path / "out", seconds=0.2)
    assert not (tmp_path / "out/noise.mp4").exists()


def test_nothing_is_overwritten(model, image, tmp_path, no_ffmpeg, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = image.read_bytes()
    first = explore([image], model=model, seconds=0.2)
    assert [path.name for path in first] == ["noise-attention.gif", "noise-attention.png"]
    kept = [path.read_bytes() for path in first]
    second = explore([image, image], model=model, seconds=0.2)
    assert [path.name for path in second[::2]] == ["noise-attention-2.gif", "noise-attention-3.gif"]
    assert image.read_bytes() == before
    assert [path.read_bytes() for path in first] == kept


def test_a_model_at_rest_looks_at_the_same_in_the_end():
    """A strong leak leaves one point of rest: the trajectory moves at first, and no more at last."""
    told = story(leak=4.0, horizon=4.0, steps=12)
    drawing = Frames(told, 0.6)
    box = drawing.student.axes.get_window_extent()
    left, right = int(box.x0) + 1, int(box.x1) - 1
    top, bottom = 320 - int(box.y1) + 1, 320 - int(box.y0) - 1

    def looked_at(t):
        return np.asarray(drawing.draw(t), dtype=int)[top:bottom, left:right]

    assert np.abs(looked_at(8.0) - looked_at(7.0)).mean() < 0.1
    assert np.abs(looked_at(1.0) - looked_at(0.0)).mean() > 1.0
    assert told.speed[-1] < 1e-3 * told.speed[0]


def test_a_model_that_rests_exactly_can_be_drawn():
    still = story()
    assert Frames(replace(still, speed=torch.zeros_like(still.speed)), 0.6).draw(1.0).size == (800, 320)


def test_lines_are_drawn_up_to_now():
    told = story()
    drawing = Frames(told, 0.6)
    for t in (0.0, 0.4, told.horizon, told.times[-1]):
        drawing.draw(t)
        for trace in drawing.traces:
            times, values = trace.line.get_data()
            assert times[-1] == t
            assert max(times) == t
            assert trace.point.get_data() == ([t], [values[-1]])
    drawing.draw(told.horizon)
    assert drawing.traces[0].point.get_data()[1][0] == pytest.approx(100 * told.answer(told.horizon)[1])


def test_a_student_is_filmed_beside_its_teacher(tmp_path, no_ffmpeg, monkeypatch):
    vit, run = make("vit-classifier"), tmp_path / "run"
    vit.save_pretrained(run / "teacher")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(run / "teacher")
    teacher = type(vit).from_pretrained(run / "teacher").eval()
    get_ode_model(teacher, OdeEncoderConfig(steps=4, horizon=2.0)).save_pretrained(run)
    (run / "alignment.json").write_text(json.dumps({"kind": "arc", "distances": [1, 2, 5], "temperature": 1.0}))
    told = []
    monkeypatch.setattr("odevit.explore.run.tell", lambda *a, **k: told.append(tell(*a, **k)) or told[-1])
    picture(30, 20).save(tmp_path / "noise.jpg")
    gif, png = explore([tmp_path / "noise.jpg"], model=run, out=tmp_path / "out", seconds=0.3)
    assert told[0].layers.starts == pytest.approx((0.0, 0.25, 0.75))
    assert next(frames_of(gif)).size == (800, 480)
    with Image.open(png) as strip:
        assert strip.width < 5 * strip.height, "two rows"


def test_a_colour_with_a_meaning_stays_itself_among_noise(tmp_path):
    noise = torch.randint(0, 256, (4, 40, 60, 3), dtype=torch.uint8).numpy()
    meant = [ImageColor.getrgb(colour) for colour in COLOURS]
    noise[:, 0, :3] = meant  # one pixel each: too rare for a palette of its own accord
    film.write_gif([Image.fromarray(each) for each in noise], tmp_path / "x.gif", exact=("white", *COLOURS))
    for frame in frames_of(tmp_path / "x.gif"):
        assert [frame.getpixel((n, 0)) for n in range(3)] == meant


def test_a_film_that_would_be_too_large_gets_fewer_colours(tmp_path, monkeypatch):
    noise = torch.randint(0, 256, (4, 40, 60, 3), dtype=torch.uint8).numpy()
    frames = [Image.fromarray(each) for each in noise]
    film.write_gif(frames, tmp_path / "rich.gif")
    monkeypatch.setattr(film, "GIF_LIMIT", (tmp_path / "rich.gif").stat().st_size - 1)
    film.write_gif(frames, tmp_path / "poor.gif")
    rich, poor = (len(next(frames_of(tmp_path / name)).getcolors(2400)) for name in ("rich.gif", "poor.gif"))
    assert poor <= 128 < rich <= 256


def test_the_outline_is_the_boundary_of_the_set():
    def length(chosen):
        return sum(np.abs(line[1] - line[0]).sum() for line in _boundary(torch.tensor(chosen), 2.0, 3.0))

    assert length([[True] * 4] * 3) == 2 * (4 * 2 + 3 * 3), "all of it: its circumference"
    assert length([[False] * 4] * 3) == 0
    assert length([[True, False], [False, True]]) == 2 * 2 * (2 + 3), "two cells that touch in a point"
    (line, *_) = _boundary(torch.tensor([[False, True]]), 2.0, 3.0)
    assert line.tolist() == [[2, 0], [2, 3]]


def test_small_images_keep_their_pixels_and_large_ones_their_shape():
    small = picture(16, 12)
    big = enlarged(small)
    assert big.size == (256, 192)
    assert np.array_equal(np.asarray(big)[::16, ::16], np.asarray(small))
    assert enlarged(picture(600, 300)).size == (256, 128)


def test_a_strip_shows_every_moment():
    told = story()
    assert draw_strip(told, [0.0, 1.0], 0.6).width < draw_strip(told, [0.0, 0.5, 1.0], 0.6).width


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"mass": 0.0}, r"mass=0\.0; expected a share of the attention in \(0, 1\]"),
        ({"seconds": -1}, r"seconds=-1; expected the length of a film in \(0, 30\]"),
        ({"beyond": 0.5}, r"beyond=0\.5; expected a number of horizons, at least 1"),
        ({"beyond": float("nan")}, "beyond=nan"),
        ({"model": "cifar11"}, "neither a folder nor a bundled model"),
        ({"solver": "lie_troter"}, "Did you mean 'lie_trotter'"),
    ],
)
def test_what_cannot_be_is_said(settings, sentence, image, model, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        explore([image], **{"model": model, "out": tmp_path / "out", **settings})


def test_files_that_are_no_images_are_said_before_anything_is_written(model, image, tmp_path):
    with pytest.raises(ValueError, match=r"there is no image '.*none\.png'; expected the path of a PNG"):
        explore([image, tmp_path / "none.png"], model=model, out=tmp_path / "out")
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(ValueError, match=r"text\.png' cannot be read as an image"):
        explore([image, tmp_path / "text.png"], model=model, out=tmp_path / "out")
    (tmp_path / "cut.png").write_bytes(image.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"cut\.png' cannot be read as an image"):
        explore([tmp_path / "cut.png"], model=model, out=tmp_path / "out")
    with pytest.raises(ValueError, match="cannot be read as an image"):
        explore([tmp_path], model=model, out=tmp_path / "out")
    with pytest.raises(ValueError, match=r"out='.*text\.png' is a file; expected a folder"):
        explore([image], model=model, out=tmp_path / "text.png")
    for nothing in ([], str(image)):
        with pytest.raises(ValueError, match="expected one path or more in a list"):
            explore(nothing, model=model, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_stack_of_layers_has_no_film(image, tmp_path):
    tiny_model(depth="stacked").save_pretrained(tmp_path / "stack")
    with pytest.raises(ValueError, match="has no trajectory to analyse"):
        explore([image], model=tmp_path / "stack", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
