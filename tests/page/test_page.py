"""The pieces of a page, read back as a browser reads them."""

import re
from html import unescape

import pytest

from odevit.page.picture import picture
from odevit.page.shell import folded, heading, paragraph, whole_page
from odevit.page.table import number, percent, table, with_error
from tests.page.alone import pictures, what_it_fetches

NASTY = 'cats & <dogs> "say" $title'
"""A class may be called anything."""


@pytest.mark.parametrize("piece", [heading, paragraph, lambda text: folded(text, []), lambda text: table([text], [])])
def test_text_is_shown_and_never_obeyed(piece):
    html = piece(NASTY)
    assert unescape(re.sub(r"<[^>]+>", "", html)) == NASTY


def test_a_page_holds_its_title_and_its_parts_in_order_and_fetches_nothing():
    parts = [heading("First"), paragraph(NASTY), heading("Last")]
    page = whole_page(NASTY, parts)
    assert [unescape(each) for each in re.findall(r"<(?:title|h1)>(.*?)</", page)] == [NASTY, NASTY]
    assert page.index(parts[0]) < page.index(parts[1]) < page.index(parts[2])
    assert not what_it_fetches(page)


def test_both_light_and_dark_know_every_colour_that_is_asked_for():
    light, dark = (set(re.findall(r"--\w+(?=:)", each)) for each in re.findall(r":root {(.*?)}", whole_page("", [])))
    assert set(re.findall(r"var\((--\w+)\)", whole_page("", []))) <= light == dark


def test_a_picture_comes_out_as_it_went_in():
    content = bytes(range(256))
    html = picture({"speed": content}, "speed", NASTY)
    assert pictures(html) == {"speed": content}
    said, below = re.search(r'alt="(.*?)".*<figcaption>(.*?)</figcaption>', html).groups()
    assert unescape(said) == unescape(below) == NASTY


def test_a_picture_that_is_missing_is_explained_or_left_out():
    assert picture({}, "speed", "caption") == ""
    assert picture({}, "speed", "caption", missing="Too <few>.") == paragraph("Too <few>.", small=True)


def test_a_table_has_its_cells_where_they_were():
    rows = [["a", "1"], ["b", ""]]
    lines = table(["name", "count"], rows).split("<tr>")[1:]
    assert re.findall(r"<th>(.*?)</th>", lines[0]) == ["name", "count"]
    assert [re.findall(r"<td>(.*?)</td>", line) for line in lines[1:]] == rows


def test_numbers_as_a_reader_likes_them():
    assert (number(-0.012345), number(0.0), number(None)) == ("−0.0123", "0", "–")
    assert (percent(0.5), with_error({"value": 0.5, "error": 0.0123})) == ("50.0%", "50.0% ± 1.2")
