"""Which tokens end an answer and pad, and the files beside weights that say so: tokenizer, chat template, generation_config.json.

Answers end with what the rows of training end with, not with what a model's files happen to name.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, read_json, write_json
from holdfast.base_model.folder import GENERATION, ModelFacts
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.templates.chat_template import pieces
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.plain_form import written_template
from holdfast.run.artifact import TOKENIZER

TEMPLATE, SETTINGS = "chat_template.jinja", "tokenizer_config.json"
_ANSWER = "yes"


def end_of_turn(codec: Codec) -> int | None:
    """Return the first special token that the template writes after an answer, else the end of text; None without any."""
    example = Example(messages=(Message("user", "Is it?"), Message("assistant", _ANSWER)))
    try:
        written = "".join(text for text, learned in pieces(example, codec.template) if learned)
    except BadRow as bad:
        raise Stop(BLOCKED, f"the chat template in {codec.folder} refuses a question and its answer: {bad.detail}", "mend it") from None
    special = {number for number, token in codec.tokenizer.get_added_tokens_decoder().items() if token.special}
    ids = codec.tokenizer.encode(written.partition(_ANSWER)[2], add_special_tokens=False).ids
    return next((number for number in ids if number in special), codec.eos)


def base_ends(facts: ModelFacts) -> tuple[int, ...]:
    """Return the tokens at which the base stops by its own files: those of its generation config, else of its config."""
    named = facts.generation.get("eos_token_id", facts.text.get("eos_token_id"))
    listed = named if isinstance(named, list) else [named]
    return tuple(number for number in map(_id, listed) if number is not None)


def end_tokens(codec: Codec, facts: ModelFacts) -> tuple[int, ...]:
    """List every token that ends an answer: first that of training, then the tokenizer's and the base's generation config's."""
    ids = dict.fromkeys([end_of_turn(codec), codec.eos, *base_ends(facts)])
    return tuple(number for number in ids if number is not None)


def pad_token(codec: Codec, facts: ModelFacts) -> int | None:
    """Return the token that the base itself pads with, its end of text where it says so; None where it has none, or an ordinary word."""
    named = (read_json(codec.folder / SETTINGS) or {}).get("pad_token")
    word = named.get("content") if isinstance(named, dict) else named
    own = codec.tokenizer.token_to_id(word) if isinstance(word, str) else None
    marks = {number for number, token in codec.tokenizer.get_added_tokens_decoder().items() if token.special}
    marks |= {number for number in (own, codec.eos, *base_ends(facts)) if number is not None}
    told = [facts.generation.get("pad_token_id"), facts.text.get("pad_token_id"), own]
    return next((number for number in map(_id, told) if number in marks), None)


def _id(number: object) -> int | None:
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def generation_config(codec: Codec, facts: ModelFacts) -> Json:
    """Return the base's own generation settings with the tokens that end what was trained on, and the base's pad token."""
    kept = {key: value for key, value in facts.generation.items() if key != "_from_model_config"}  # by which some go by config.json
    return kept | {"eos_token_id": one_or_all(end_tokens(codec, facts)), "pad_token_id": pad_token(codec, facts)}


def one_or_all(ids: tuple[int, ...]) -> int | list[int]:
    return ids[0] if len(ids) == 1 else list(ids)


def write_companions(codec: Codec, facts: ModelFacts, folder: Path) -> None:
    """Write what every artifact and export has beside its weights: tokenizer, the template that was trained, generation_config.json."""
    copy_tokenizer(codec, folder)
    write_json(folder / GENERATION, generation_config(codec, facts))


def copy_tokenizer(codec: Codec, folder: Path) -> None:
    """Copy the base's tokenizer, with the template that was trained in place of its own, also where the base has none."""
    for name in TOKENIZER:
        if (codec.folder / name).is_file():
            shutil.copyfile(codec.folder / name, folder / name)
    if codec.template.source is None or codec.given is not None:
        written = written_template(codec)
        (folder / TEMPLATE).write_text(written, encoding="utf-8")
        if "chat_template" in (settings := read_json(folder / SETTINGS) or {}):  # what reads no chat_template.jinja
            write_json(folder / SETTINGS, settings | {"chat_template": written})
