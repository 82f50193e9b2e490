"""Does transformers' own renderer write the rows as ours did? One row of each shape is written by both at the start.

Ours renders without importing torch, with bounds on a template's time and memory. Where it wrote something else, the run would learn
what no server asks for, and nothing else would ever say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from transformers.utils.chat_template_utils import render_jinja_template

from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.data.files.raw_row import Source
from holdfast.data.judge.judge import JudgedRow
from holdfast.data.judge.rules import NO_LIMIT, rules_of
from holdfast.data.judge.turns import Example
from holdfast.data.templates.chat_template import write_learned
from holdfast.data.templates.conversation import RenderedRow
from holdfast.data.templates.template import ChatTemplate, turns_of
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.shard import Block, blocks, readable
from holdfast.trainer.common.refuse import Refusal

_FILES, _ROWS = 16, 256  # the first files, and the first rows of each, are looked at
_SHAPES = 16  # that are rendered
_LONGEST = 1 << 16  # characters of a row that is
_TRIES = 3  # a template may write the time
_SHOWN, _BEFORE = 160, 40  # characters of a text that are shown, and of those the ones before the difference


class TemplateDifference(NamedTuple):
    """What each of the two writes, from a little before they differ."""

    ours: str
    theirs: str


def refuse_other_rendering(config: Config, codec: Codec, special: Mapping[str, Any]) -> None:
    """Raise Refusal with both texts where transformers writes a row of the run's files otherwise.

    special: the names of special tokens with their texts, as transformers' tokenizer has them.
    """
    if codec.template.source is None:
        return
    learns = rules_of(config, NO_LIMIT).learns
    for source, example, written in one_of_each_shape(config, codec):
        found = difference(written, example, codec.template, special)
        for _ in range(_TRIES if found else 0):
            found = found and difference(write_learned(example, codec.template, learns), example, codec.template, special)
        if found:
            message = f"{source}: transformers writes this row otherwise than holdfast does with the same chat template"
            message += f"\n  holdfast:     {found.ours!r}\n  transformers: {found.theirs!r}"
            hint = "mend the template, or give another as data.chat_template; the row as it is trained: holdfast data show FILE --row N"
            raise Refusal("tokenizer_or_template", message, hint)


def difference(written: RenderedRow, example: Example, template: ChatTemplate, special: Mapping[str, Any]) -> TemplateDifference | None:
    """Find how a sequence of ours is no beginning of transformers' text up to one of the answers; None where each is.

    An answer with a thought behind a prompt that opens one, or one that stands in the whole text behind other turns, is right if its prompt
    is transformers' own.
    """
    turns = turns_of(example.messages, template, example.tools)
    answers = [at for at, turn in enumerate(turns) if turn["role"] == "assistant"]

    def theirs(until: int, open_end: bool) -> str:
        return _theirs(turns[:until], example.tools, template, special, open_end)

    for pieces in written.sequences:
        ours = "".join(text for text, _ in pieces)
        whole = [theirs(at + 1, False) for at in answers]
        if any(text.startswith(ours) for text in whole):
            continue
        last = max((at for at, (_, learned) in enumerate(pieces) if learned), default=0)
        prompt = "".join(text for text, _ in pieces[:last])
        said = pieces[last][0]
        if any(("</think>" in said or said in text) and theirs(at, True) == prompt for at, text in zip(answers, whole, strict=True)):
            continue
        nearest = max(whole, key=lambda text: _common(ours, text))
        begin = max(0, _common(ours, nearest) - _BEFORE)
        return TemplateDifference(ours[begin : begin + _SHOWN], nearest[begin : begin + _SHOWN])
    return None


def _theirs(turns: list[Json], tools: Sequence[Any], template: ChatTemplate, special: Mapping[str, Any], open_end: bool) -> str:
    asked = {"tools": [*tools] or None, "chat_template": template.source, "add_generation_prompt": open_end}
    try:
        return str(render_jinja_template([turns], **asked, **special)[0][0])
    except Exception as error:  # noqa: BLE001  a template is somebody else's program
        return f"(refused: {' '.join(str(error).split())[:_SHOWN]})"


def _common(one: str, two: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def one_of_each_shape(config: Config, codec: Codec) -> Iterator[tuple[Source, Example, RenderedRow]]:
    """Yield the shortest conversation of each shape among the first rows: its roles, and what stands in its turns."""
    found: dict[tuple[Any, ...], tuple[Source, JudgedRow, RenderedRow]] = {}
    for source, judged, written in first_rows(config, codec, _ROWS):
        shape = _shape(judged.example)
        known = found.get(shape)
        if shape and (known is None or len(judged.raw) < len(known[1].raw)):
            found[shape] = source, judged, written
    for source, judged, written in [*found.values()][:_SHAPES]:
        yield source, judged.example, written


def first_rows(config: Config, codec: Codec, most: int) -> Iterator[tuple[Source, JudgedRow, RenderedRow]]:
    """Yield the readable ones of the first `most` rows of each of the first files, each as it is written; none that is very long."""
    for file in config.data.files[:_FILES]:
        if block := next(blocks(file), None):
            for judged, written in readable(Block(block.rows[:most]), rules_of(config, NO_LIMIT), codec)[0]:
                if len(judged.raw) <= _LONGEST:
                    yield Source(file, block.first_line + judged.line), judged, written


def _shape(example: Example) -> tuple[Any, ...]:
    marks = [(one.role, bool(one.calls), bool(one.thinking), type(one.content), bool(one.beside)) for one in example.messages]
    return (*dict.fromkeys(marks), len(marks) > len({*marks}), bool(example.tools)) if marks else ()
