"""A page, read back as a browser reads it."""

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
def test_text_is_shown_and_never_obeyed(page, template):
    body = page(template, said=NASTY).split("</h2>")[1]
    assert NASTY in unescape(re.sub(r"<[^>]+>", "", body))
    assert "<dogs>" not in body


def test_a_page_holds_its_title_and_its_parts_in_order_and_fetches_nothing(render):
    parts = [("First", "<p>one</p>"), ("Silent", "{% if false %}x{% endif %} "), ("<Last>", "two")]
    html = render(NASTY, parts, {}, {})
    assert [unescape(text) for text in re.findall(r"<(?:title|h1)>(.*?)</", html)] == [NASTY, NASTY]
    assert [unescape(text) for text in re.findall(r"<h2>(.*?)</h2>", html)] == ["First", "<Last>"], "one says nothing"
    assert html.index("one") < html.index("two")
    assert html.startswith("<!doctype html>")
    assert not what_it_fetches(html)


def test_both_light_and_dark_know_every_colour_that_is_asked_for(page):
    html = page("text")
    light, dark = (set(re.findall(r"--\w+(?=:)", rules)) for rules in re.findall(r":root {(.*?)}", html))
    assert set(re.findall(r"var\((--\w+)\)", html)) <= light == dark


def test_a_picture_comes_out_as_it_went_in(page):
    content = bytes(range(256))
    html = page("{% call picture('speed') %}{{ said }}{% endcall %}", {"speed": content}, said=NASTY)
    assert pictures(html) == {"speed": content}
    said, below = re.search(r'alt="(.*?)".*<figcaption>(.*?)</figcaption>', html).groups()
    assert unescape(said) == unescape(below) == NASTY


def test_a_picture_that_is_missing_is_explained_or_left_out(page):
    assert "<h2>" not in page("{% call picture('speed') %}caption{% endcall %}")
    html = page("{% call picture('speed', missing='Too <few>.') %}caption{% endcall %}")
    assert '<p class="small">Too &lt;few&gt;.</p>' in html
    assert "caption" not in html.split("</h2>")[1]


def test_a_table_has_its_cells_where_they_were(page):
    rows = [["a", "1"], ["b", ""]]
    lines = "{% for it in rows %}{{ row(*it) }}{% endfor %}"
    html = page("{% call table('name', 'count') %}" + lines + "{% endcall %}", rows=rows)
    head, *lines = html.split("<tr>")[1:]
    assert re.findall(r"<th>(.*?)</th>", head) == ["name", "count"]
    assert [re.findall(r"<td>(.*?)</td>", line) for line in lines] == rows


@pytest.mark.parametrize(("good", "kind"), [(True, "good"), (False, "bad"), (None, "open")])
def test_a_verdict_is_coloured_by_what_one_hopes_for(page, good, kind):
    verdict = {"question": "Does it?", "answer": "partly so", "good": good, "sentences": ["One.", "Two."]}
    html = page("{{ answer(verdict) }}", verdict=verdict)
    assert f'<section class="verdict {kind}"><h3>Does it? Partly so.</h3>' in html
    assert html.index("<p>One.</p>") < html.index("<p>Two.</p>")


def test_a_number_that_is_not_there_is_an_error_and_no_gap(page):
    with pytest.raises(UndefinedError, match="'absent' is undefined"):
        page("{{ absent }}")


def test_numbers_as_a_reader_likes_them():
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
def test_an_error_of_nought_is_not_said(hits, count, said):
    assert share_of(to_builtins(Proportion(hits, count))) == said
