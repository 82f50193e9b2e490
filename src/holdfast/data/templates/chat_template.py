"""Turn an example into pieces of text, each given or learned, by the model's own chat template. Knows no token numbers."""

from __future__ import annotations

from dataclasses import replace

from holdfast.data.judge.rules import Learns
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.templates.conversation import Note, RenderedRow, write_conversation
from holdfast.data.templates.dropped import dropped_turns
from holdfast.data.templates.sandbox import to_json
from holdfast.data.templates.skeleton import BESIDE, Piece, Skeleton, make_skeleton
from holdfast.data.templates.template import THOUGHT, ChatTemplate, load_template

__all__ = [
    "ChatTemplate",
    "compared_answer",
    "learned_by",
    "load_template",
    "pair_written",
    "pieces",
    "worse_pieces",
    "write",
    "write_learned",
]

_MOST_SHAPES = 1000
_PAIR = ("user", "assistant")


def write(example: Example, template: ChatTemplate) -> RenderedRow:
    """Render an example as it is trained on. Raises BadRow when the template refuses the turns."""
    if not example.messages:
        return _text(example, template)
    if template.compiled is None:
        return _plain(example.messages, template)
    if found := _by_shape(example, template):
        return found
    found = write_conversation(example.messages, example.tools, template)
    found = found._replace(notes=(*found.notes, *dropped_turns(example.messages, found)))
    return _with_tools(found, example, template)


def pieces(example: Example, template: ChatTemplate) -> list[Piece]:
    """Return the texts of an example in order, each with whether it is learned; of several sequences those of the last answer's."""
    return write(example, template).sequences[-1]


def write_learned(example: Example, template: ChatTemplate, learns: Learns) -> RenderedRow:
    """Render an example with what of it is learned: of all, answers in a row's prompt, too. Raises BadRow as `write` does."""
    if learns == "all" and any(one.learn is False for one in example.messages):
        example = replace(example, messages=tuple([one._replace(learn=one.learn is False or one.learn) for one in example.messages]))
    return learned_by(write(example, template), learns)


def learned_by(written: RenderedRow, learns: Learns) -> RenderedRow:
    """Mark the pieces that are to be learned: as they are, the last answer alone, or all of one sequence.

    Raises BadRow where it is the last answer, and the template keeps nothing of that.
    """
    if learns == "assistant":
        return written
    parts = written.sequences[-1]
    if learns == "all":
        return _learned_whole(written)
    if written.ends is False:
        raise _lost_end(written)
    last = written.last if written.last >= 0 else max((at for at, (_, learned) in enumerate(parts) if learned), default=len(parts))
    only: list[Piece] = [(text, at >= last and learned) for at, (text, learned) in enumerate(parts)]
    notes = _of_one_sequence(written)
    shares = int(any(0 < share < 1 for _, share in only))
    return written._replace(sequences=[only], notes=notes, learned=1, unended=min(1, written.unended), shares=shares)


def compared_answer(written: RenderedRow) -> RenderedRow:
    """Return the row unless its last answer, which is held against another, is not learned. Raises BadRow."""
    if not written.ends:
        raise _lost_end(written)
    return written


def _lost_end(written: RenderedRow) -> BadRow:
    """Say why the last answer is not learned: an earlier one in its place would be the answer to another question."""
    if written.ends is not False:
        return BadRow("all_labels_masked", "its last answer is marked as not to be learned, and no other is compared in its place")
    reason = "no_place_for_tool_calls" if written.calls else "turn_left_out"
    return BadRow(reason, "the chat template keeps nothing of its last answer, and no other is learned in its place")


def _learned_whole(written: RenderedRow) -> RenderedRow:
    """Have all of the last sequence learned, but for answers that the row turns off; those it lets count less do so.

    Of several sequences the last one begins with the earlier answers. It begins as a prompt where one of those is marked: which of its
    words are that answer's is not known.
    """
    parts, notes, several = written.sequences[-1], _of_one_sequence(written), len(written.sequences) > 1
    whole: list[Piece] = [(text, BESIDE if learned is False else learned) for text, learned in parts]
    if not written.marked_before:
        learned = written.answers - written.off if several else written.learned
        return written._replace(sequences=[whole], notes=notes, learned=learned)
    answers = [learned for _, learned in parts if learned]
    whole[0] = (whole[0][0], False)
    told = (
        f"of {written.answers:,} answers {len(answers):,} are learned: earlier ones, of which one is marked, stand in the last one's prompt"
    )
    notes = (*(note for note in notes if note[0] != "answer_not_learned"), ("answer_not_learned", told))
    return written._replace(sequences=[whole], notes=notes, learned=len(answers), shares=sum(share < 1 for share in answers))


def _of_one_sequence(written: RenderedRow) -> tuple[Note, ...]:
    return tuple(note for note in written.notes if note[0] != "several_sequences")


def worse_pieces(example: Example, template: ChatTemplate) -> list[Piece]:
    """Return the pieces of a pair's worse conversation; its last answer is the one compared."""
    written = compared_answer(write(replace(example, messages=example.worse, worse=()), template))
    return learned_by(written, "last").sequences[-1]


def pair_written(prompt: str, answer: str, template: ChatTemplate) -> RenderedRow | None:
    """Render a prompt and its answer by the skeleton of such conversations; None where none holds for these."""
    if template.shapes is None:
        return None
    shape = template.shapes[_PAIR] if _PAIR in template.shapes else _shape(_PAIR, template)
    found = shape.fill((prompt, answer)) if shape else None
    return RenderedRow([found], shape.notes, 1, 1, shape.unended, last=shape.last) if found and shape else None


def _by_shape(example: Example, template: ChatTemplate) -> RenderedRow | None:
    """Render by the skeleton of the conversation's shape; None where none holds for it."""
    messages = example.messages
    unlike = any(one.calls or one.thinking or one.beside or one.learn is not True for one in messages)
    if template.shapes is None or example.tools or unlike:
        return None
    roles = tuple([message.role for message in messages])
    shape = _shape(roles, template)
    found = shape.fill([message.content for message in messages]) if shape else None
    answers = roles.count("assistant")
    return RenderedRow([found], shape.notes, answers, answers, shape.unended, last=shape.last) if found and shape else None


def _shape(roles: tuple[str, ...], template: ChatTemplate) -> Skeleton | None:
    assert template.shapes is not None
    if roles not in template.shapes:
        template.shapes[roles] = _skeleton(roles, template) if len(template.shapes) < _MOST_SHAPES else None
    return template.shapes[roles]


def _skeleton(roles: tuple[str, ...], template: ChatTemplate) -> Skeleton | None:
    """Return the skeleton of conversations that are one sequence with every answer learned; None for others, looked at one by one."""
    answers = roles.count("assistant")
    known: list[RenderedRow] = []

    def render(contents: list[str]) -> list[Piece]:
        found = write_conversation(tuple(map(Message, roles, contents)), (), template)
        known.append(found)
        return found.sequences[0] if len(found.sequences) == 1 and found.learned == answers else []

    try:
        shape = make_skeleton(render, len(roles)) if roles[-1] == "assistant" else None
    except BadRow:
        return None
    if shape is None:
        return None
    apart = ("<think>", "</think>") if template.takes_thoughts_out or "prompt_differs" in dict(known[0].notes) else ()
    return replace(shape, absent=(*shape.absent, *apart), notes=known[0].notes, unended=known[0].unended, last=known[0].last)


def _text(example: Example, template: ChatTemplate) -> RenderedRow:
    """Render a text that passes through no template, with what the tokenizer itself puts around it: one beginning, one end."""
    given, learned = example.given, example.learned
    ends = {template.eos, template.trail} - {""}
    stripped = learned.rstrip()
    if not any(stripped.endswith(end) for end in ends):
        learned += template.eos or template.trail
    elif stripped != learned:
        learned = stripped
    lead = template.lead if template.compiled is not None and not (given or learned).startswith(template.lead) else ""
    found: list[Piece] = [(given, False), (learned, True)]
    unended = () if ends else (("answer_without_end", "the tokenizer has no end of text: the model does not learn to stop"),)
    return RenderedRow([[(lead, False), *found] if lead else found], unended, 1, 1, len(unended))


def _tools_left_out(example: Example, template: ChatTemplate) -> tuple[Note, ...]:
    if not template.compiled or not example.tools or "tools" in (template.source or ""):
        return ()
    return (("tools_left_out", "the chat template has no place for tools: the model is not told which there are"),)


def _with_tools(written: RenderedRow, example: Example, template: ChatTemplate) -> RenderedRow:
    told = _tools_left_out(example, template)
    return written._replace(notes=(*written.notes, *told)) if told else written


def _plain(messages: tuple[Message, ...], template: ChatTemplate) -> RenderedRow:
    found: list[Piece] = []
    names = {"system": "### System:\n", "user": "### Instruction:\n", "tool": "### Result:\n"}
    given, answers = template.lead, 0
    for message in messages:
        if message.role == "assistant":
            called = "".join(f"{to_json(call['function'])}\n" for call in message.calls)
            thought = THOUGHT.format(message.thinking.strip()) if message.thinking else ""
            found += [(given + "### Response:\n", False), (thought + message.content + called + template.eos, message.learn)]
            given = "\n\n"
            answers += 1
        else:
            given += f"{names.get(message.role, f'### {message.role}:')}{message.content}\n\n"
    learned = sum(bool(flag) for _, flag in found)
    if not learned and answers:
        raise BadRow("all_labels_masked", f"each of its {answers:,} answers is marked as not to be learned")
    shares = sum(0 < flag < 1 for _, flag in found)
    ends = found[-1][1] if answers else True
    return RenderedRow([found], (), answers, learned, 0 if template.eos else learned, answers - learned, shares=shares, ends=ends)
