"""Films: the right frames, showing the numbers of the trace, without overwriting files."""

import json
import shutil
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor
from transformers import ViTImageProcessorPil

from odevit.explorer import film
from odevit.explorer.film import explore
from odevit.explorer.frames import CLASS_COLOURS, Frames, draw_strip, prediction_text, resize_for_display
from odevit.explorer.traces import TeacherTrace, trace_ode
from odevit.plotting import mask_outline
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.surgery.surgery import get_ode_model
from tests.explorer.test_traces import picture
from tests.tiny import tiny_model
from tests.zoo import make

CAT, LAST = shutil.which("cat"), "for last; do :; done"
"""For scripts without a PATH: copy the input, and find the last argument."""


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


def noise_trace(**overrides):
    return trace_ode(tiny_model(**{"steps": 3, **overrides}), picture(), "noise")


def with_a_teacher(trace):
    """The trace beside three layers of a teacher, at 0, 1/4 and 1/2 of its horizon."""
    starts = tuple(share * trace.horizon for share in (0.0, 0.25, 0.5))
    layers = torch.rand(3, *trace.mean_attention.shape[1:])
    return replace(trace, teacher=TeacherTrace(layers, torch.rand(4, 32), starts))


def fake_ffmpeg(folder, script):
    """A program of that name: these tests check how it is called and how its exit is handled."""
    folder.mkdir()
    program = folder / "ffmpeg"
    program.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def test_explore_writes_ten_different_frames_per_second(model, image, tmp_path, no_ffmpeg):
    gif, png = explore([image], model=model, out=tmp_path / "out", seconds=0.8)
    frames = list(frames_of(gif))
    assert len(frames) == 8
    assert len({frame.size for frame in frames}) == 1
    assert len({frame.tobytes() for frame in frames}) == 8
    assert gif.stat().st_size < film.GIF_LIMIT
    with Image.open(gif) as opened, Image.open(png) as strip:
        assert opened.info["duration"] == 100
        assert strip.format == "PNG"


def test_explore_without_ffmpeg_writes_a_gif_and_prints_a_notice(model, image, tmp_path, no_ffmpeg, capsys):
    written = explore([image], model=model, out=tmp_path / "out", seconds=0.2)
    assert [path.name for path in written] == ["noise.gif", "noise.png"]
    assert all(path.exists() for path in written)
    assert "No ffmpeg on the PATH" in capsys.readouterr().out


def test_write_mp4_passes_every_pixel_to_ffmpeg(tmp_path, monkeypatch):
    script = f'{CAT} > {tmp_path}/raw; echo "$@" > {tmp_path}/words; {LAST}; echo film > "$last"'
    monkeypatch.setenv("PATH", str(fake_ffmpeg(tmp_path / "bin", script)))
    frames = [Image.fromarray(noise.numpy()) for noise in torch.randint(0, 256, (3, 40, 60, 3), dtype=torch.uint8)]
    film.write_mp4(frames, tmp_path / "x.mp4")
    received = np.fromfile(tmp_path / "raw", dtype=np.uint8).reshape(3, 40, 60, 4)
    assert np.array_equal(received[..., :3], np.stack([np.asarray(frame) for frame in frames]))
    words = (tmp_path / "words").read_text()
    for expected in ("-s 60x40", "h264", "-pix_fmt yuv420p", "-movflags +faststart", str(tmp_path / "x.mp4")):
        assert expected in words


def test_explore_with_ffmpeg_writes_an_mp4(model, image, tmp_path, monkeypatch, capsys):
    script = f'{CAT} > {tmp_path}/raw; {LAST}; echo film > "$last"'
    monkeypatch.setenv("PATH", str(fake_ffmpeg(tmp_path / "bin", script)))
    written = explore([image], model=model, out=tmp_path / "out", seconds=0.3)
    assert [path.name for path in written] == ["noise.gif", "noise.mp4", "noise.png"]
    assert capsys.readouterr().out == ""


def test_write_mp4_reports_errors_of_ffmpeg_and_leaves_no_file(tmp_path, monkeypatch):
    script = f'{CAT} > {tmp_path}/raw; {LAST}; echo half > "$last"; echo no codec >&2; exit 1'
    monkeypatch.setenv("PATH", str(fake_ffmpeg(tmp_path / "bin", script)))
    with pytest.raises(ValueError, match=r"ffmpeg could not write .*noise\.mp4: no codec"):
        film.write_mp4([picture()] * 2, tmp_path / "noise.mp4")
    assert not (tmp_path / "noise.mp4").exists()


def test_explore_overwrites_no_file(model, image, tmp_path, no_ffmpeg, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = image.read_bytes()
    first = explore([image], model=model, seconds=0.2)
    assert [path.name for path in first] == ["noise-attention.gif", "noise-attention.png"]
    contents = [path.read_bytes() for path in first]
    second = explore([image, image], model=model, seconds=0.2)
    assert [path.name for path in second[::2]] == ["noise-attention-2.gif", "noise-attention-3.gif"]
    assert image.read_bytes() == before
    assert [path.read_bytes() for path in first] == contents


def test_frames_show_the_numbers_of_the_trace_at_their_time():
    trace = noise_trace()
    drawing = Frames(trace, 0.6)
    for n, t in enumerate(trace.times):
        drawing.draw(t)
        assert drawing.prediction.get_text() == prediction_text(trace, t)
        assert drawing.model.axes.get_title() == f"attention at t = {t:.2f}"
        np.testing.assert_allclose(drawing.model.heatmap.get_array(), 100 * trace.mean_attention[n], rtol=1e-6)
    low, high = drawing.model.heatmap.get_clim()
    assert low == pytest.approx(100 * float(trace.mean_attention.min()))
    assert high == pytest.approx(100 * float(trace.mean_attention.max())), "a colour means the same in every frame"


def test_frames_outline_the_requested_share_of_attention():
    trace = noise_trace()
    for mass in (0.3, 1.0):
        drawing = Frames(trace, mass)
        drawing.draw(0.0)
        segments = drawing.model.outline.get_segments()
        assert segments
        corners = np.concatenate(segments)
        width, height = drawing.model.size
        covers_all = np.ptp(corners, axis=0).tolist() == [width, height]
        assert covers_all or mass < 1.0, "all of the attention covers the whole image"
    assert drawing.model.axes.get_xlabel() == f"query: {trace.query}\noutlined: 100% of the attention"


def test_attention_of_a_converged_model_stops_changing():
    """A strong leak leaves one fixed point: the state moves at first and then no longer."""
    trace = noise_trace(leak=4.0, horizon=4.0, steps=12)
    drawing = Frames(trace, 0.6)

    def shown(t):
        drawing.draw(t)
        return np.array(drawing.model.heatmap.get_array())

    assert np.abs(shown(8.0) - shown(7.0)).max() < 1e-2 * np.abs(shown(1.0) - shown(0.0)).max()
    assert trace.speed[-1] < 1e-2 * trace.speed[0]


def test_frames_draw_a_speed_of_zero():
    trace = noise_trace()
    drawing = Frames(replace(trace, speed=torch.zeros_like(trace.speed)), 0.6)
    drawing.draw(1.0)
    low, high = drawing.lines[-1].line.axes.get_ylim()
    assert 0 < low <= drawing.lines[-1].line.get_ydata()[-1] <= high


def test_frames_draw_lines_up_to_their_time():
    trace = noise_trace()
    drawing = Frames(trace, 0.6)
    for t in (0.0, 0.4, trace.horizon, trace.times[-1]):
        drawing.draw(t)
        for line in drawing.lines:
            times, values = line.line.get_data()
            assert times[-1] == max(times) == t
            assert line.point.get_data() == ([t], [values[-1]])
    drawing.draw(trace.horizon)
    assert drawing.lines[0].point.get_data()[1][0] == pytest.approx(100 * trace.prediction_at(trace.horizon)[1])
    legend = [text.get_text() for text in drawing.lines[0].line.axes.get_legend().get_texts()]
    assert legend == [trace.label(number) for number in trace.top_classes()]


def test_frames_show_the_teachers_layer_at_their_time():
    trace = with_a_teacher(noise_trace())
    drawing = Frames(trace, 0.6)
    for share, number in ((0.0, 1), (0.3, 2), (0.5, 3), (2.0, 3)):
        drawing.draw(share * trace.horizon)
        assert drawing.teacher.axes.get_title() == f"teacher, layer {number} of 3"
        np.testing.assert_allclose(
            drawing.teacher.heatmap.get_array(), 100 * trace.teacher.attention[number - 1], rtol=1e-6
        )
    assert Frames(replace(trace, teacher=None), 0.6).figure.get_figheight() < drawing.figure.get_figheight()


def test_explore_shows_a_student_beside_its_teacher(tmp_path, no_ffmpeg, monkeypatch):
    vit, run = make("vit-classifier"), tmp_path / "run"
    vit.save_pretrained(run / "teacher")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(run / "teacher")
    teacher = type(vit).from_pretrained(run / "teacher").eval()
    get_ode_model(teacher, OdeStudentConfig(steps=4, horizon=2.0)).save_pretrained(run)
    (run / "alignment.json").write_text(json.dumps({"kind": "arc", "distances": [1, 2, 5], "temperature": 1.0}))
    traces = []
    monkeypatch.setattr(
        film, "trace_ode", lambda *args, **options: traces.append(trace_ode(*args, **options)) or traces[-1]
    )
    picture(30, 20).save(tmp_path / "noise.jpg")
    written = explore([tmp_path / "noise.jpg"], model=run, out=tmp_path / "out", seconds=0.3)
    assert [path.name for path in written] == ["noise.gif", "noise.png"]
    assert traces[0].teacher.starts == pytest.approx((0.0, 0.25, 0.75))
    assert len(traces[0].teacher.attention) == 3


def test_write_gif_keeps_the_colours_of_classes_exactly(tmp_path):
    noise = torch.randint(0, 256, (4, 40, 60, 3), dtype=torch.uint8).numpy()
    exact = [ImageColor.getrgb(colour) for colour in CLASS_COLOURS]
    noise[:, 0, :3] = exact  # one pixel each, too rare to be in the palette otherwise
    film.write_gif([Image.fromarray(frame) for frame in noise], tmp_path / "x.gif")
    for frame in frames_of(tmp_path / "x.gif"):
        assert [frame.getpixel((n, 0)) for n in range(3)] == exact


def test_write_gif_reduces_colours_above_the_size_limit(tmp_path, monkeypatch):
    noise = torch.randint(0, 256, (4, 40, 60, 3), dtype=torch.uint8).numpy()
    frames = [Image.fromarray(frame) for frame in noise]
    film.write_gif(frames, tmp_path / "rich.gif")
    monkeypatch.setattr(film, "GIF_LIMIT", (tmp_path / "rich.gif").stat().st_size - 1)
    film.write_gif(frames, tmp_path / "poor.gif")
    rich, poor = (len(next(frames_of(tmp_path / name)).getcolors(2400)) for name in ("rich.gif", "poor.gif"))
    assert poor <= 128 < rich <= 256


def test_mask_outline_is_the_boundary_of_the_mask():
    def length(mask):
        width, height = 2.0 * len(mask[0]), 3.0 * len(mask)
        return sum(np.abs(end - start).sum() for start, end in mask_outline(mask, width, height))

    assert length([[True] * 4] * 3) == 2 * (4 * 2 + 3 * 3), "all of it: its circumference"
    assert length([[False] * 4] * 3) == 0
    assert length([[True, False], [False, True]]) == 2 * 2 * (2 + 3), "two cells that touch in a point"
    (segment, *_) = mask_outline(torch.tensor([[False, True]]), 4.0, 3.0)
    assert segment.tolist() == [[2, 0], [2, 3]]


def test_resize_for_display_keeps_pixels_square_and_shapes():
    small = picture(16, 12)
    big = resize_for_display(small)
    assert big.size == (256, 192)
    assert np.array_equal(np.asarray(big)[::16, ::16], np.asarray(small))
    assert resize_for_display(picture(600, 300)).size == (256, 128)


def test_draw_strip_shows_attention_and_prediction_at_each_time():
    trace = noise_trace()
    figure = draw_strip(trace, [0.0, 0.5, trace.horizon], 0.6)
    first, *moments, scale = figure.axes
    assert first.get_xlabel() == "noise"
    for axes, t in zip(moments, (0.0, 0.5, trace.horizon), strict=True):
        assert axes.get_xlabel().startswith(f"t = {t:.4g}")
        assert axes.get_xlabel().endswith(prediction_text(trace, t))
    assert "(horizon)" in moments[-1].get_xlabel()
    np.testing.assert_allclose(moments[0].images[1].get_array(), 100 * trace.mean_attention[0], rtol=1e-6)
    assert scale.get_ylabel() == "% per patch"
    assert figure.get_supxlabel() == f"query: {trace.query}; outlined: 60% of the attention"
    *two_rows, _, _ = draw_strip(with_a_teacher(trace), [0.0, 0.5], 0.6).axes
    assert [axes.get_xlabel() for axes in two_rows[-2:]] == ["teacher, layer 1", "teacher, layer 3"]


def test_frames_number_classes_of_the_same_name():
    trace = noise_trace()
    drawing = Frames(replace(trace, labels=dict.fromkeys(range(5), "crane")), 0.6)
    legend = [text.get_text() for text in drawing.lines[0].line.axes.get_legend().get_texts()]
    assert legend == ["crane", "crane (2)", "crane (3)"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"mass": 0.0}, r"mass=0\.0; expected a share of the attention in \(0, 1\]"),
        ({"seconds": -1}, r"seconds=-1; expected the length of a film in \(0, 30\]"),
        ({"beyond": 0.5}, r"beyond=0\.5; expected a number of horizons, from 1 to 1000"),
        ({"beyond": float("nan")}, "beyond=nan"),
        ({"model": "cifar11"}, "neither a folder nor a bundled model"),
        ({"solver": "lie_troter"}, "Did you mean 'lie_trotter'"),
        ({"mass": 2, "seconds": 99}, r"(?s)2 problems.*mass=2.*seconds=99"),
    ],
)
def test_explore_refuses_invalid_settings(settings, sentence, image, model, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        explore([image], **{"model": model, "out": tmp_path / "out", **settings})


def test_explore_checks_all_images_before_writing(model, image, tmp_path):
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
    with pytest.raises(ValueError, match=r"out='.*text\.png' is a file; expected the path of a folder"):
        explore([image], model=model, out=tmp_path / "text.png")
    for nothing in ([], str(image)):
        with pytest.raises(ValueError, match="expected one path or more in a list"):
            explore(nothing, model=model, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_explore_refuses_a_model_without_a_trajectory(image, tmp_path):
    tiny_model(depth="stacked").save_pretrained(tmp_path / "stack")
    with pytest.raises(ValueError, match="has no trajectory"):
        explore([image], model=tmp_path / "stack", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
