"""Chat templates that came with a model: they reach nothing, take bounded time and memory, and never end a command with a traceback."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from pathlib import Path

import pytest

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base_model.folder import EMBEDDED
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.templates import budget
from holdfast.data.templates.chat_template import load_template, pieces
from holdfast.data.templates.sandbox import sandbox
from support.hostile import bounded

TURNS = Example(messages=(Message("user", "How much is free?"), Message("assistant", "df -h tells.")))
ANSWER = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
NESTED = "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
OTHER = NESTED.replace("n.x", "o.x").replace("set n ", "set o ")
BOMBS = {
    "centre": "{{ 'x'|center(10**10) }}",
    "centre by a method": "{{ 'x'.center(10**10) }}",
    "ljust": "{{ 'x'.ljust(width=10**10) }}",
    "zfill": "{{ '1'.zfill(10**10) }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "percent by an argument": "{{ '%*d' % (999999999, 1) }}",
    "format": "{{ '{:>999999999}'.format(1) }}",
    "format by an argument": "{{ '{:>{w}}'.format(1, w=999999999) }}",
    "format filter": "{{ '%999999999d'|format(1) }}",
    "product": "{{ 'x' * 10**10 }}",
    "product of a list": "{{ ([0] * 10**9)|length }}",
    "power": "{{ 10**10**10 }}",
    "tojson": "{{ messages|tojson(indent=10**9) }}",
    "indent": "{{ 'a\nb'|indent(10**10) }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a loop of output": "{% set x = 'x' * 10**6 %}{% for a in range(99999) %}{{ x }}{% endfor %}",
    "doubling": "{% set n = namespace(x='xx') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling by plus": "{% set n = namespace(x='xx') %}{% for a in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling by join": "{% set n = namespace(x='xx') %}{% for a in range(99) %}{% set n.x = [n.x, n.x]|join %}{% endfor %}",
    "doubling by replace": "{% set n = namespace(x='xx') %}{% for a in range(99) %}{% set n.x = n.x.replace('x', 'xx') %}{% endfor %}",
    "range": "{{ range(10**9)|list }}",
    "division": "{{ 1 / 0 }}",
    "a macro of itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "an index": "{{ messages[99]['content'] }}",
    "macros of one another": "{% macro a(n) %}{% if n %}{{ b(n - 1) }}{{ b(n - 1) }}{% endif %}{% endmacro %}"
    "{% macro b(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(90) }}",
    "a call of itself": "{% macro d(n) %}{% if n %}{{ d(n - 1) }}{{ d(n - 1) }}{% endif %}{% endmacro %}{{ d(60) }}",
    "nested lists as JSON": NESTED + "{{ n.x|tojson }}",
    "nested lists written": NESTED + "{{ n.x }}",
    "nested lists joined to a text": NESTED + "{{ 'a' ~ n.x }}",
    "nested lists compared": NESTED + OTHER + "{{ n.x == o.x }}",
    "nested lists asked for in one another": NESTED + "{{ n.x is in [n.x[0], n.x] }}{{ [n.x]|unique|list }}",
    "nested lists by pprint": NESTED + "{{ n.x|pprint }}",
    "lists deep in lists": "{% set n = namespace(x=[]) %}{% for a in range(99999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x|tojson }}",
    "nested objects as attributes": "{% set x = 'x' * 10**6 %}{{ {'a': [x] * 5000}|xmlattr }}",
    "attributes that are escaped": "{% set x = '<' * 10**7 %}{{ {'a': x, 'b': x, 'c': x}|xmlattr }}",
    "sort in loops": "{% for a in range(99999) %}{% set x = range(99999)|sort(reverse=true) %}{% endfor %}",
    "sort of long texts": "{% set n = namespace(x=[]) %}{% for a in range(5000) %}{% set n.x = n.x + ['x' * 10**6 ~ a] %}"
    "{% endfor %}{{ n.x|sort }}",
    "unique in loops": "{% for a in range(99999) %}{{ range(99999)|unique|list|length }}{% endfor %}",
    "join of much": "{{ range(99999)|join('x' * 10**6) }}",
    "join of one text": "{{ (['x' * 10**6] * 10**5)|join }}",
    "join by a method": "{{ ('x' * 10**6).join(['a'] * 10**5) }}",
    "slices": "{% for a in range(99999) %}{% set x = range(99999)|slice(99999)|list %}{% endfor %}",
    "very many slices": "{{ [1]|slice(10**9)|list|length }}",
    "filled batches": "{{ [1]|batch(10**9, 'x')|list|length }}",
    "copies in a list": "{% set n = namespace(x=[]) %}{% for a in range(999) %}{% set n.x = n.x + ['x' * 10**7 ~ a] %}{% endfor %}",
    "a date": "{{ strftime_now('%999999999d') }}",
    "a date with a flag": "{{ strftime_now('%_4000000000Y') }}",
    "chained selects": "{% for a in range(9999) %}{{ range(99999)" + "|select" * 60 + "|list|length }}{% endfor %}",
    "a macro in a chain of maps": "{{ range(99999)" + "|map('string')|map('upper')" * 30 + "|list|length }}",
    "made words": "{{ lipsum(10**6) }}",
    "numbers doubled": "{% set n = namespace(x=10**4000) %}{% for a in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "rounding": "{{ 1.5|round(10**8, 'ceil') }}",
    "bytes filled up": "{{ 'x'.encode().ljust(10**10) }}",
    "bytes repeated": "{{ 'x'.encode() * 10**10 }}",
    "bytes of a number": "{{ (5).to_bytes(10**10) }}",
    "tags stripped": "{{ ('<!---->' * 10**6)|striptags }}",
    "lines indented": "{{ ('\n' * 10**7)|indent(4000) }}",
    "lists added up": "{{ ([[1]] * 10**6)|sum(start=[]) }}",
    "a format of many places": "{{ ('{0}' * 10**6).format('x' * 10**6) }}",
    "a percent of many places": "{{ ('%(a)s' * 10**6) % {'a': 'x' * 10**6} }}",
    "letters translated": "{{ ('x' * 10**6).translate({120: 'y' * 10**6}) }}",
    "slices of a list": "{% set x = [0] * 10**7 %}{% for a in range(99999) %}{% set y = x[:] %}{% endfor %}",
    "JSON indented in depth": NESTED.replace("60", "18") + "{{ n.x|tojson(indent=4000) }}",
    "a block of itself": "{% block a %}{% block b %}x{% endblock %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "an escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "an attribute of nothing": "{{ messages.nothing.at.all }}",
}


def template_in(folder: Path, source: str | bytes) -> Path:
    shutil.copytree(EMBEDDED["tiny"], folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_bytes(source if isinstance(source, bytes) else source.encode())
    return folder


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_refuses_its_row(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("_TURNS", "_ITEMS"):  # a tenth of the work shows it as well
        monkeypatch.setattr(budget, bound, getattr(budget, bound) // 10)
    template = load_template(template_in(tmp_path, BOMBS[name]))
    with bounded(name), pytest.raises(BadRow) as bad:
        pieces(TURNS, template)
    assert len(str(bad.value)) < 500


def test_a_template_that_is_slow_with_each_row_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are refused one by one while they are few; what each of them costs is not paid for all of a file."""
    template = load_template(template_in(tmp_path, BOMBS["loops"]))
    clock = iter(range(0, 10**6, 7))  # each look at the clock is 7 s later
    monkeypatch.setattr(time, "thread_time", lambda: float(next(clock)))
    with pytest.raises(Stop, match=r"the chat template took .* s for .* conversations") as stop:
        for _ in range(9):
            with contextlib.suppress(BadRow):
                pieces(TURNS, template)
    assert stop.value.code == BLOCKED and "data.chat_template" in stop.value.hint


def test_no_rendering_goes_on_where_the_command_ends(tmp_path: Path) -> None:
    template = load_template(template_in(tmp_path, ANSWER + "{% for a in x %}{% endfor %}"))
    try:
        budget.ending.set()
        with pytest.raises(BadRow, match="the command ends"):
            pieces(TURNS, template)
    finally:
        budget.ending.clear()


@pytest.mark.parametrize(
    "source", [b"\xff\xfe{{ x }}", "{% for %}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% include 'x' %}{% foo %}"]
)
def test_what_is_no_template_is_refused_in_a_sentence(source: str | bytes, tmp_path: Path) -> None:
    with pytest.raises(Stop) as stop:
        load_template(template_in(tmp_path, source))
    assert stop.value.code == BLOCKED and "chat template" in stop.value.message and len(stop.value.message) < 600


@pytest.mark.parametrize("named", [[{"name": {}, "template": ANSWER}], [{"name": ["default"]}], [None, 3], {"default": 3}, 7])
def test_odd_lists_of_templates_are_none(named: object, tmp_path: Path) -> None:
    template_in(tmp_path, "").joinpath("chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert load_template(tmp_path).source is None


def test_an_honest_template_is_rendered_by_its_shape_as_before(tmp_path: Path) -> None:
    template = load_template(template_in(tmp_path, ANSWER))
    assert pieces(TURNS, template) == [("user: How much is free?\nassistant: ", False), ("df -h tells.\n", True)]
    assert template.shapes is not None and template.shapes[("user", "assistant")] is not None


def test_loops_know_their_length_and_end_as_in_plain_jinja() -> None:
    source = "{% for a in x if a > 1 %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% else %}none{% endfor %}"
    assert sandbox().from_string(source).render(x=[1, 2, 3]) == "1/2,2/2"
    assert sandbox().from_string(source).render(x=[]) == "none"
    assert sandbox().from_string("{% for k, v in x.items() %}{{ k }}{{ v }}{% endfor %}{{ 'a' ~ 1 }}").render(x={"k": 2}) == "k2a1"
