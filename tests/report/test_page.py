"""write_page and the macros and filters of its templates."""

import re
from html import unescape
from types import SimpleNamespace

import pytest
from jinja2 import ChoiceLoader, DictLoader, PackageLoader, UndefinedError

from odevit.analysis.significance import Proportion
from odevit.report import section
from odevit.report.page import number, of_norm, percent, share_of, small_share, span, with_error
from odevit.report.section import to_builtins, write_page
from tests.report.alone import pictures, what_it_fetches

NASTY = 'cats & <dogs> "say" {{ title }} $title'
"""A class may be called anything."""


@pytest.fixture
def render(monkeypatch, tmp_path):
    """A page whose lead is empty: `student.html.j2` and `analysis.html.j2` want numbers."""
    loader = ChoiceLoader([PackageLoader("odevit.report", ""), DictLoader({"empty": ""})])
    monkeypatch.setattr(section, "PackageLoader", lambda *_: loader)

    def rendered(title, parts, numbers, figures):
        sections = [SimpleNamespace(title=heading, text=text) for heading, text in parts]
        return write_page(tmp_path / "page.html", title, "empty", sections, numbers, figures).read_text()

    return rendered


@pytest.fixture
def page(render):
    def one_section(text, figures=None, **numbers):
        return render("A title", [("Heading", text)], numbers, figures or {})

    return one_section


@pytest.mark.parametrize(
    "template",
    [
        "<p>{{ said }}</p>",
        "{% call small() %}{{ said }}{% endcall %}",
        "{% call table(said) %}{% endcall %}",
        "{% call table('') %}{{ row(said) }}{% endcall %}",
        "{{ answer({'question': said, 'answer': '', 'good': none, 'sentences': []}) }}",
        "{{ answer({'question': '', 'answer': '', 'good': true, 'sentences': [said]}) }}",
        "{% call picture('absent', missing=said) %}{% endcall %}",
    ],
)
def test_templates_escape_text(page, template):
    body = page(template, said=NASTY).split("</h2>")[1]
    assert NASTY in unescape(re.sub(r"<[^>]+>", "", body))
    assert "<dogs>" not in body


def test_write_page_has_title_and_parts_in_order_and_no_links(render):
    parts = [("First", "<p>one</p>"), ("Silent", "{% if false %}x{% endif %} "), ("<Last>", "two")]
    html = render(NASTY, parts, {}, {})
    assert [unescape(text) for text in re.findall(r"<(?:title|h1)>(.*?)</", html)] == [NASTY, NASTY]
    assert [unescape(text) for text in re.findall(r"<h2>(.*?)</h2>", html)] == ["First", "<Last>"], "one says nothing"
    assert html.index("one") < html.index("two")
    assert html.startswith("<!doctype html>")
    assert not what_it_fetches(html)


def test_page_defines_every_colour_for_light_and_dark(page):
    html = page("text")
    light, dark = (set(re.findall(r"--\w+(?=:)", rules)) for rules in re.findall(r":root {(.*?)}", html))
    assert set(re.findall(r"var\((--\w+)\)", html)) <= light == dark


def test_picture_embeds_the_png_and_its_caption(page):
    content = bytes(range(256))
    html = page("{% call picture('speed') %}{{ said }}{% endcall %}", {"speed": content}, said=NASTY)
    assert pictures(html) == {"speed": content}
    said, below = re.search(r'alt="(.*?)".*<figcaption>(.*?)</figcaption>', html).groups()
    assert unescape(said) == unescape(below) == NASTY


def test_picture_without_a_figure_shows_missing_or_nothing(page):
    assert "<h2>" not in page("{% call picture('speed') %}caption{% endcall %}")
    html = page("{% call picture('speed', missing='Too <few>.') %}caption{% endcall %}")
    assert '<p class="small">Too &lt;few&gt;.</p>' in html
    assert "caption" not in html.split("</h2>")[1]


def test_table_and_row_keep_the_order_of_cells(page):
    rows = [["a", "1"], ["b", ""]]
    lines = "{% for it in rows %}{{ row(*it) }}{% endfor %}"
    html = page("{% call table('name', 'count') %}" + lines + "{% endcall %}", rows=rows)
    head, *lines = html.split("<tr>")[1:]
    assert re.findall(r"<th>(.*?)</th>", head) == ["name", "count"]
    assert [re.findall(r"<td>(.*?)</td>", line) for line in lines] == rows


@pytest.mark.parametrize(("good", "kind"), [(True, "good"), (False, "bad"), (None, "open")])
def test_verdict_has_the_class_of_its_answer(page, good, kind):
    verdict = {"question": "Does it?", "answer": "partly so", "good": good, "sentences": ["One.", "Two."]}
    html = page("{{ answer(verdict) }}", verdict=verdict)
    assert f'<section class="verdict {kind}"><h3>Does it? Partly so.</h3>' in html
    assert html.index("<p>One.</p>") < html.index("<p>Two.</p>")


def test_template_with_an_undefined_number_raises(page):
    with pytest.raises(UndefinedError, match="'absent' is undefined"):
        page("{{ absent }}")


def test_numbers_are_formatted():
    assert (number(-0.012345), number(0.0), number(None), number(-1.5, "+.2f")) == ("−0.0123", "0", "–", "−1.50")
    assert (percent(0.5), percent(None), with_error({"value": 0.5, "error": 0.0123})) == ("50.0%", "–", "50.0% ± 1.2")
    assert (small_share(1e-6), small_share(0.0123), small_share(0.5)) == ("less than 0.001%", "1.2%", "50%")
    assert (of_norm(None), of_norm(0.5)) == ("no finite distance", "50% of its norm")
    assert of_norm(1234.0) == "1,234 times its norm"
    assert (span("1.0", "2.0"), span("2.0", "2.0")) == ("1.0 to 2.0", "2.0")


@pytest.mark.parametrize(
    ("hits", "count", "said"),
    [
        (36, 72, "50.0% (± 5.9)"),
        (72, 72, "100.0% (95% interval 94.9% to 100.0%)"),
        (0, 72, "0.0% (95% interval 0.0% to 5.1%)"),
        (1, 10_000, "0.0% (95% interval 0.0% to 0.1%)"),
        (10**6, 10**6, "100.0%"),
        (0, 0, "–"),
    ],
)
def test_share_of_shows_the_interval_where_the_error_rounds_to_0(hits, count, said):
    assert share_of(to_builtins(Proportion(hits, count))) == said
