"""A model's chat template and what it writes of a conversation. Knows no token numbers.

The template is rendered with jinja2 directly, in the environment transformers documents for chat templates, because importing a
transformers tokenizer imports torch.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.file_errors import of_the_file
from holdfast.base.files import Json, read_json
from holdfast.base.safe_open import read_small
from holdfast.data.judge.turns import BadRow, Message
from holdfast.data.templates.sandbox import MARK_BEGIN, MARK_END, bounded_text, sandbox
from holdfast.data.templates.skeleton import Skeleton, Unclear, followable

THOUGHT = "<think>\n{}\n</think>\n\n"  # as DeepSeek-R1 and Qwen3 write it
_THOUGHT_IN_TEXT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
_READS = {
    name: re.compile(rf"\.{name}\b|\[\s*['\"]{name}['\"]|['\"]{name}['\"]\s+in\b|\(\s*['\"]{name}['\"]")
    for name in ("reasoning_content", "thinking", "reasoning")
}  # ways a template asks for a field of a turn
_MARKED = re.compile(r"\{%[-+]?\s*generation\b")
_SLOW_S, _MOST_SLOW_S = 0.5, 20.0  # of one rendering, and of all slow ones together
_SHOWN = 300  # characters of what a template says


@dataclass(frozen=True)
class ChatTemplate:
    """A model's chat template (None: a plain instruction form) and the texts of its special tokens.

    `lead`, `trail`: what the tokenizer itself puts before and behind a text that passes through no template. `specials`: texts that become
    special tokens, `added`: all that become one token wherever they stand. `names`: further special tokens by what templates call them.
    """

    source: str | None
    bos: str
    eos: str
    compiled: jinja2.Template | None
    shapes: dict[tuple[str, ...], Skeleton | None] | None = field(default=None, compare=False)  # by roles; None: rendered row by row
    lead: str = ""
    trail: str = ""
    specials: tuple[str, ...] = ()
    added: frozenset[str] = frozenset()
    names: tuple[tuple[str, str], ...] = ()
    known: dict[str, Any] = field(default_factory=dict, compare=False)  # found out once: see `learned`

    @property
    def marked(self) -> bool:
        """Whether it says itself what is generated, between {% generation %} and {% endgeneration %}."""
        if "marked" not in self.known:
            self.known["marked"] = bool(self.source and _MARKED.search(self.source))
        return bool(self.known["marked"])

    @property
    def thinking_names(self) -> tuple[str, ...]:
        """The fields of a turn that it reads reasoning from."""
        if "thinking" not in self.known:
            self.known["thinking"] = tuple(name for name, asks in _READS.items() if self.source and asks.search(self.source))
        found: tuple[str, ...] = self.known["thinking"]
        return found

    @property
    def takes_thoughts_out(self) -> bool:
        """Whether reasoning in a text has to be put where the template reads it from: it knows nothing of <think>."""
        return bool(self.thinking_names) and "</think>" not in (self.source or "")

    @property
    def end(self) -> str:
        """The text of the special token it writes behind an answer; "" where it writes none."""
        if "end" not in self.known:
            self.known["end"] = self._find_end()
        return str(self.known["end"])

    @property
    def ends(self) -> tuple[str, ...]:
        """The texts of all tokens that can end an answer."""
        return tuple(token for token in (self.eos, *self.specials) if token)

    @property
    def always_opens(self) -> bool:
        """Whether it opens the next turn behind every answer, asked for or not."""
        if "opens" not in self.known:
            self.known["opens"] = self._opens()
        return bool(self.known["opens"])

    @property
    def adds_arguments(self) -> bool:
        """Whether it adds the arguments of a call to a text, and so takes them as text alone."""
        if "adds_arguments" not in self.known:
            self.known["adds_arguments"] = self._adds()
        return bool(self.known["adds_arguments"])

    def _find_end(self) -> str:
        behind = self._behind_an_answer()
        if behind is None:
            return self.eos
        found = [(at, -len(token), token) for token in {*self.specials, self.eos} if token and (at := behind.find(token)) >= 0]
        return min(found)[2] if found else ""

    def _behind_an_answer(self) -> str | None:
        """Return the text behind the answer of a plain exchange; None where it refuses one. The plain form has the end of text there."""
        if self.compiled is None:
            return self.eos
        try:
            return render(self, _EXCHANGE, (), False).rpartition(_EXCHANGE[1].content)[2]
        except BadRow:
            return None

    def _adds(self) -> bool:
        if self.compiled is None or "tool_calls" not in (self.source or ""):
            return False
        try:
            _rendered(self, _turns(_CALLING, self, False), (), False)
        except TypeError:
            with contextlib.suppress(TypeError, BadRow):
                return bool(_rendered(self, _turns(_CALLING, self, True), (), False))
        except BadRow:
            pass
        return False

    def _opens(self) -> bool:
        behind = self._behind_an_answer()
        if self.compiled is None or not behind or not self.end or not behind.partition(self.end)[2].strip():
            return False
        try:
            return all(render(self, turns, (), True) == render(self, turns, (), False) for turns in (_EXCHANGE[:1], _EXCHANGE))
        except BadRow:
            return False


_EXCHANGE = (Message("user", "Is it so?"), Message("assistant", "quite so"))
_CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
_CALLING = (Message("user", "Is it so?"), Message("assistant", "", (_CALL,)))


def load_template(folder: Path, given: str | None = None) -> ChatTemplate:
    """Read the chat template of a model folder: chat_template.jinja, else tokenizer_config.json, else none. given: one in its place."""
    settings = read_json(folder / "tokenizer_config.json") or {}
    file = folder / "chat_template.jinja"
    environment = sandbox()
    try:
        source = given or (read_small(file).decode() if file.is_file() else _template_of(settings))
        compiled = environment.from_string(source) if source else None
        shapes: dict[tuple[str, ...], Skeleton | None] | None = {} if source and followable(environment, source) else None
    except Exception as error:  # noqa: BLE001  a template is somebody else's program, and compiling it computes
        what, hint = f"the chat template in {folder}", "download the model's tokenizer again"
        if given:
            what, hint = "data.chat_template", "mend the template, or give another"
        line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise Stop(BLOCKED, f"{what} cannot be used: {line}{_short(of_the_file(error))}", hint) from None
    names = tuple((name, text) for name in settings if name.endswith("_token") and (text := _token(settings, name)))
    return ChatTemplate(source, _token(settings, "bos_token"), _token(settings, "eos_token"), compiled, shapes, names=names)


def render(template: ChatTemplate, messages: tuple[Message, ...], tools: tuple[Any, ...], open_end: bool, marks: bool = False) -> str:
    """Render a conversation; marks: with MARK_BEGIN and MARK_END around the spans the template says are generated.

    Raises BadRow where it refuses the turns. A template that adds up texts gets the arguments of calls as text.
    """
    try:
        text = _rendered(template, _turns(messages, template, template.adds_arguments), tools, open_end)
    except TypeError as error:
        text = _with_text_arguments(template, messages, tools, open_end, error)
    if marks or not template.marked:
        return text
    return text.replace(MARK_BEGIN, "").replace(MARK_END, "")


def _with_text_arguments(
    template: ChatTemplate, messages: tuple[Message, ...], tools: tuple[Any, ...], open_end: bool, error: TypeError
) -> str:
    """Render turns that the template refused with `error` with the arguments of calls as text. Raises BadRow where it refuses those, too.

    Nothing is remembered: what is wrong with one row says nothing of how the next one is written.
    """
    if any(message.calls for message in messages) and not template.adds_arguments:
        with contextlib.suppress(TypeError, BadRow):
            return _rendered(template, _turns(messages, template, True), tools, open_end)
    raise BadRow("template_refuses", f"the chat template refuses these turns: {_short(error)}") from error


def turns_of(messages: tuple[Message, ...], template: ChatTemplate, tools: tuple[Any, ...] = ()) -> list[Json]:
    """Return the turns as they are handed to a template."""
    as_text = template.adds_arguments
    if not as_text and template.compiled and any(message.calls for message in messages):
        try:
            _rendered(template, _turns(messages, template, False), tools, False)
        except TypeError:
            as_text = True
        except BadRow:
            pass
    return _turns(messages, template, as_text)


def _turns(messages: tuple[Message, ...], template: ChatTemplate, as_text: bool) -> list[Json]:
    return [_turn(message, template, as_text) for message in messages]


def _rendered(template: ChatTemplate, turns: list[Json], tools: tuple[Any, ...], open_end: bool) -> str:
    assert template.compiled is not None
    given = dict(template.names) | {"bos_token": template.bos, "eos_token": template.eos}
    begun_s = time.thread_time()
    try:
        return bounded_text(
            template.compiled.generate(
                **given,
                messages=turns,
                add_generation_prompt=open_end,
                tools=[*tools] or None,
                documents=None,
            )
        )
    except (Unclear, TypeError):  # a mark's way of saying that the template looks into it; arguments of another kind
        raise
    except Exception as error:  # a template is a program of somebody else's
        raise BadRow("template_refuses", f"the chat template refuses these turns: {_short(error)}") from error
    finally:
        _count_slow(template, time.thread_time() - begun_s)


def _count_slow(template: ChatTemplate, took_s: float) -> None:
    """Add up what renderings take beyond what any needs. Raises Stop(1) where that has become too much for one job."""
    if took_s < _SLOW_S:
        return
    times, seconds = template.known.get("slow", (0, 0.0))
    template.known["slow"] = times, seconds = times + 1, seconds + took_s
    if seconds > _MOST_SLOW_S and times > 1:
        text = f"the chat template took {seconds:.0f} s for {times:,} conversations, far more than any needs"
        raise Stop(BLOCKED, text, "mend the model's chat template, or give another with data.chat_template")


def _turn(message: Message, template: ChatTemplate, as_text: bool) -> Json:
    turn: Json = {"role": message.role, "content": message.content} | dict(message.beside)
    if message.role == "assistant" and (thinking := placed_thinking(message, template)):
        if names := template.thinking_names:  # under both names, as transformers has it
            turn |= {"content": thinking[1]} | dict.fromkeys(("reasoning_content", "thinking", *names), thinking[0])
        else:
            turn["content"] = THOUGHT.format(message.thinking.strip()) + message.content
    if not message.calls:
        return turn
    if not as_text:
        return turn | {"tool_calls": [*message.calls]}
    functions = [{**call["function"], "arguments": _as_text(call["function"]["arguments"])} for call in message.calls]
    return turn | {"tool_calls": [{**call, "function": function} for call, function in zip(message.calls, functions, strict=True)]}


def placed_thinking(message: Message, template: ChatTemplate) -> tuple[str, str] | None:
    """Split a turn into its reasoning and the rest, where the reasoning is apart, or has to be: the template reads it from a field, and
    knows nothing of <think> in a text."""
    if message.thinking:
        return message.thinking, message.content
    if type(message.content) is not str or "</think>" not in message.content or not template.takes_thoughts_out:
        return None
    found = _THOUGHT_IN_TEXT.match(message.content)
    return (found[1].strip(), message.content[found.end() :]) if found and found[1].strip() else None


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _template_of(settings: Json) -> str | None:
    source = settings.get("chat_template")
    if isinstance(source, list):
        source = next((entry.get("template") for entry in source if isinstance(entry, dict) and entry.get("name") == "default"), None)
    return source if isinstance(source, str) and source else None


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


def _token(settings: Json, name: str) -> str:
    value = settings.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
