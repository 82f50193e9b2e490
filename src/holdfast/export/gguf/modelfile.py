"""A Modelfile for Ollama: the chat template in Ollama's language, where the model's own is as simple as that, and what ends an answer."""

from __future__ import annotations

import itertools

from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.templates.chat_template import pieces
from holdfast.data.tokens.codec import Codec

_SYSTEM, _USER, _ANSWER = "\u27ea-SYSTEM-\u27eb", "HOLDFASTUSER", "HOLDFASTANSWER"  # the first begins and ends as no other text does


def modelfile(codec: Codec, file: str, end: int | None, lead: str) -> str:
    """Return the text of a Modelfile; without TEMPLATE where the model's own needs more than one question and its answer.

    lead: what the file has an engine put before each text, which Ollama does although the text begins so.
    """
    lines = [f"FROM ./{file}"]
    template = _template(codec, lead)
    if template is not None:
        lines.append(f'TEMPLATE """{template}"""')
        if "{{ .System }}" not in template:
            lines.append("# a system message has no effect: the chat template has no place for one that can be written here")
    word = codec.tokenizer.id_to_token(end) if end is not None else None
    if word:
        lines.append(f'PARAMETER stop "{word}"')
    return "\n".join([*lines, "PARAMETER temperature 0", ""])


def _template(codec: Codec, lead: str) -> str | None:
    plain = _written(codec, lead, Message("user", _USER))
    if plain is None or '"""' in plain or "{{" in plain:
        return None
    with_system = _written(codec, lead, Message("system", _SYSTEM), Message("user", _USER))
    text = _with_place(plain, with_system) if with_system else plain
    return text.replace(_USER, "{{ .Prompt }}").replace(_ANSWER, "{{ .Response }}")


def _with_place(plain: str, with_system: str) -> str:
    """Return `plain` with what a system message adds to it, or has in place of a default one; `plain` itself where it is more than that."""
    if with_system.endswith(plain):
        before, added, default, after = "", with_system.removesuffix(plain), "", plain
    else:
        before = _common(plain, with_system)
        rest, other = plain.removeprefix(before), with_system.removeprefix(before)
        after = _common(rest[::-1], other[::-1])[::-1]
        default, added = rest.removesuffix(after), other.removesuffix(after)
    if added.count(_SYSTEM) != 1 or any(mark in part for mark in (_USER, _ANSWER) for part in (added, default)):
        return plain
    otherwise = f"{{{{ else }}}}{default}" if default else ""
    return f"{before}{{{{ if .System }}}}{added.replace(_SYSTEM, '{{ .System }}')}{otherwise}{{{{ end }}}}{after}"


def _common(one: str, other: str) -> str:
    """Return what two texts begin with."""
    alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return one[:alike]


def _written(codec: Codec, lead: str, *turns: Message) -> str | None:
    """Return how question and answer are written, without the lead; None where the template refuses them or has another place for each."""
    try:
        text = "".join(part for part, _ in pieces(Example(messages=(*turns, Message("assistant", _ANSWER))), codec.template))
    except BadRow:
        return None
    text = text.removeprefix(lead)
    once = all(text.count(mark) == 1 for mark in (_USER, _ANSWER))
    return text if once else None
