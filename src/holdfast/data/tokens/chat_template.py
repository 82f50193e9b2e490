"""Turn an example into pieces of text, each given or learned, by the model's own chat template. Knows no token numbers.

The template is rendered with jinja2 directly, in the environment transformers documents for chat templates, because importing a
transformers tokenizer imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import jinja2

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, read_json
from holdfast.base.safe_open import read_small
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.tokens.sandbox import bounded_text, sandbox, to_json
from holdfast.data.tokens.skeleton import Piece, Skeleton, Unclear, followable, make_skeleton

_MOST_SHAPES = 1000
_SHOWN = 300  # characters of what a template says
_PAIR = ("user", "assistant")
_THOUGHT = "<think>\n{}\n</think>\n\n"  # as DeepSeek-R1 and Qwen3 write it


@dataclass(frozen=True)
class ChatTemplate:
    """A model's chat template (None: the plain instruction form below) and the texts of its special tokens."""

    source: str | None
    bos: str
    eos: str
    compiled: jinja2.Template | None
    shapes: dict[tuple[str, ...], Skeleton | None] | None = field(default=None, compare=False)  # by roles; None: rendered row by row


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
        raise Stop(BLOCKED, f"{what} cannot be used: {_short(error)}", hint) from None
    return ChatTemplate(source, _token(settings, "bos_token"), _token(settings, "eos_token"), compiled, shapes)


def pieces(example: Example, template: ChatTemplate) -> list[Piece]:
    """The texts of an example in order, each with whether it is learned. Raises BadRow when the template refuses the turns."""
    if not example.messages:
        return [(example.given, False), (example.learned + template.eos, True)]
    if template.compiled is None:
        return _plain(example.messages, template.eos)
    return _by_shape(example, template) or _chat(example.messages, example.tools, template)


def learned_by(parts: list[Piece], learns: Literal["assistant", "last", "all"]) -> list[Piece]:
    """The pieces with those marked that are to be learned: as they are, the last answer alone, or all."""
    if learns == "assistant":
        return parts
    last = max((at for at, (_, learned) in enumerate(parts) if learned), default=-1)
    return [(text, learns == "all" or at == last) for at, (text, _) in enumerate(parts)]


def worse_pieces(example: Example, template: ChatTemplate) -> list[Piece]:
    """The pieces of a pair's worse conversation; its last answer is what is looked at."""
    return learned_by(pieces(replace(example, messages=example.worse, worse=()), template), "last")


def pair_pieces(prompt: str, answer: str, template: ChatTemplate) -> list[Piece] | None:
    """The pieces of a prompt and its answer by the skeleton of such conversations, where there is one that holds for these."""
    if template.shapes is None:
        return None
    shape = template.shapes[_PAIR] if _PAIR in template.shapes else _shape(_PAIR, template)
    return shape.fill((prompt, answer)) if shape else None


def _by_shape(example: Example, template: ChatTemplate) -> list[Piece] | None:
    """The pieces by the skeleton of the conversation's shape, where there is one that holds for it."""
    messages = example.messages
    if template.shapes is None or example.tools or any(message.calls or message.thinking for message in messages):
        return None
    shape = _shape(tuple([message.role for message in messages]), template)
    return shape.fill([message.content for message in messages]) if shape else None


def _shape(roles: tuple[str, ...], template: ChatTemplate) -> Skeleton | None:
    assert template.shapes is not None
    if roles not in template.shapes:
        template.shapes[roles] = _skeleton(roles, template) if len(template.shapes) < _MOST_SHAPES else None
    return template.shapes[roles]


def _skeleton(roles: tuple[str, ...], template: ChatTemplate) -> Skeleton | None:
    """Of conversations whose every answer can be told from what stands before it; others are looked at one by one."""
    answers = roles.count("assistant")

    def render(contents: list[str]) -> list[Piece]:
        found = _chat(tuple(map(Message, roles, contents)), (), template)
        return found if sum(learned for _, learned in found) == answers else []

    try:
        return make_skeleton(render, len(roles)) if roles[-1] == "assistant" else None
    except BadRow:
        return None


def _chat(messages: tuple[Message, ...], tools: tuple[Any, ...], template: ChatTemplate) -> list[Piece]:
    """Render the conversation up to before and after each assistant turn; what such a turn adds is learned.

    A template that rewrites earlier turns (dropping their reasoning, say) allows this for the last assistant turn only.
    """
    answers = [at for at, message in enumerate(messages) if message.role == "assistant"]
    for chosen in (answers, answers[-1:]):
        found: list[Piece] = []
        done = ""
        for at in chosen:
            before = _render(template, messages[:at], tools, True)
            after = _render(template, messages[: at + 1], tools, False)
            if not before.startswith(done) or not after.startswith(before):
                break
            found += [(before[len(done) :], False), (after[len(before) :], True)]
            done = after
        else:
            return found
    raise BadRow("template_refuses", "the chat template does not write an answer behind its own generation prompt")


def _render(template: ChatTemplate, messages: tuple[Message, ...], tools: tuple[Any, ...], open_end: bool) -> str:
    assert template.compiled is not None
    turns: list[Json] = [_turn(message, template) for message in messages]
    try:
        return bounded_text(
            template.compiled.generate(
                messages=turns,
                add_generation_prompt=open_end,
                bos_token=template.bos,
                eos_token=template.eos,
                tools=[*tools] or None,
                documents=None,
            )
        )
    except Unclear:  # a mark's way of saying that the template looks into it
        raise
    except Exception as error:  # a template is a program of somebody else's
        raise BadRow("template_refuses", f"the chat template refuses these turns: {_short(error)}") from error


def without_place(example: Example, template: ChatTemplate) -> list[str]:
    """What of an example the template has no place for, and what becomes of it, in words."""
    source, found = template.source or "", []
    if any(message.thinking for message in example.messages) and not _knows_thinking(template):
        found.append("the chat template has no place for reasoning: it is written as <think>...</think> before the answer")
    if template.compiled and any(message.calls for message in example.messages) and "tool_call" not in source:
        found.append("the chat template has no place for tool calls: they are left out of what is trained")
    if template.compiled and example.tools and "tools" not in source:
        found.append("the chat template has no place for tools: the model is not told which there are")
    return found


def _knows_thinking(template: ChatTemplate) -> bool:
    return "reasoning_content" in (template.source or "")


def _turn(message: Message, template: ChatTemplate) -> Json:
    turn: Json = {"role": message.role, "content": message.content}
    if message.thinking and _knows_thinking(template):
        turn["reasoning_content"] = message.thinking
    elif message.thinking:
        turn["content"] = _THOUGHT.format(message.thinking.strip()) + message.content
    return turn | ({"tool_calls": [*message.calls]} if message.calls else {})


def _plain(messages: tuple[Message, ...], eos: str) -> list[Piece]:
    found: list[Piece] = []
    names = {"system": "### System:\n", "user": "### Instruction:\n", "tool": "### Result:\n"}
    given = ""
    for message in messages:
        if message.role == "assistant":
            called = "".join(f"{to_json(call['function'])}\n" for call in message.calls)
            thought = _THOUGHT.format(message.thinking.strip()) if message.thinking else ""
            found += [(given + "### Response:\n", False), (thought + message.content + called + eos, True)]
            given = "\n\n"
        else:
            given += f"{names.get(message.role, f'### {message.role}:')}{message.content}\n\n"
    return found


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
