"""Chat templates that came with a model: they reach nothing, take bounded time and memory, and never end a command with a traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base_model.folder import EMBEDDED
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.templates.chat_template import load_template, pieces
from holdfast.data.templates.sandbox import sandbox

TURNS = Example(messages=(Message("user", "How much is free?"), Message("assistant", "df -h tells.")))
ANSWER = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
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
    "an escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "an attribute of nothing": "{{ messages.nothing.at.all }}",
}


def template_in(folder: Path, source: str | bytes) -> Path:
    shutil.copytree(EMBEDDED["tiny"], folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_bytes(source if isinstance(source, bytes) else source.encode())
    return folder


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_refuses_its_row(name: str, tmp_path: Path) -> None:
    template = load_template(template_in(tmp_path, BOMBS[name]))
    with pytest.raises(BadRow) as bad:
        pieces(TURNS, template)
    assert len(str(bad.value)) < 500


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
