"""A Modelfile for Ollama: the chat template in Ollama's language, where the model's own is as simple as that, and what ends an answer."""

from __future__ import annotations

from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.templates.chat_template import pieces
from holdfast.data.tokens.codec import Codec

_SYSTEM, _USER, _ANSWER = "HOLDFASTSYSTEM", "HOLDFASTUSER", "HOLDFASTANSWER"


def modelfile(codec: Codec, file: str, end: int | None) -> str:
    """Return the text of a Modelfile; without TEMPLATE where the model's own needs more than one question and its answer."""
    lines = [f"FROM ./{file}"]
    template = _template(codec)
    if template is not None:
        lines.append(f'TEMPLATE """{template}"""')
    word = codec.tokenizer.id_to_token(end) if end is not None else None
    if word:
        lines.append(f'PARAMETER stop "{word}"')
    return "\n".join([*lines, "PARAMETER temperature 0", ""])


def _template(codec: Codec) -> str | None:
    try:
        plain = _written(codec, Message("user", _USER))
        with_system = _written(codec, Message("system", _SYSTEM), Message("user", _USER))
    except BadRow:
        return None
    if plain is None or '"""' in plain or "{{" in plain:
        return None
    system = ""
    if with_system is not None and with_system.endswith(plain) and _SYSTEM in with_system.removesuffix(plain):
        before, _, after = with_system.removesuffix(plain).partition(_SYSTEM)
        system = f"{{{{ if .System }}}}{before}{{{{ .System }}}}{after}{{{{ end }}}}"
    return system + plain.replace(_USER, "{{ .Prompt }}").replace(_ANSWER, "{{ .Response }}")


def _written(codec: Codec, *turns: Message) -> str | None:
    text = "".join(part for part, _ in pieces(Example(messages=(*turns, Message("assistant", _ANSWER))), codec.template))
    once = all(text.count(mark) == 1 for mark in (_USER, _ANSWER))
    return text if once else None
