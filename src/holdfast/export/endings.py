"""Which tokens end an answer: what the rows of training end with, not what a model's files happen to name."""

from __future__ import annotations

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import read_json
from holdfast.base_model.folder import ModelFacts
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.templates.chat_template import pieces
from holdfast.data.tokens.codec import Codec

_ANSWER = "yes"


def end_of_turn(codec: Codec) -> int | None:
    """The first special token that the chat template writes behind an answer, else the tokenizer's end of text; None without any."""
    example = Example(messages=(Message("user", "Is it?"), Message("assistant", _ANSWER)))
    try:
        written = "".join(text for text, learned in pieces(example, codec.template) if learned)
    except BadRow as bad:
        raise Stop(BLOCKED, f"the chat template in {codec.folder} refuses a question and its answer: {bad.detail}", "mend it") from None
    special = {number for number, token in codec.tokenizer.get_added_tokens_decoder().items() if token.special}
    ids = codec.tokenizer.encode(written.partition(_ANSWER)[2], add_special_tokens=False).ids
    return next((number for number in ids if number in special), codec.eos)


def end_tokens(codec: Codec, facts: ModelFacts) -> tuple[int, ...]:
    """Every token that ends an answer, the one of training first: then the tokenizer's own and those of the base's generation config."""
    named = (read_json(facts.folder / "generation_config.json") or {}).get("eos_token_id", facts.config.get("eos_token_id"))
    listed = named if isinstance(named, list) else [named]
    ids = dict.fromkeys([end_of_turn(codec), codec.eos, *listed])
    return tuple(number for number in ids if isinstance(number, int))
