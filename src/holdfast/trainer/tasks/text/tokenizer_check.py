"""Does transformers cut text as tokenizer.json does? It takes some tokenizers' rules from the model's type, whatever the file says.

A model trained on one cutting and used with the other is worse than it should be, and nothing else would ever say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from holdfast.base.files import Json, read_json
from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.data.token_set.token_set import TokenSet
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.given_template import codec_of
from holdfast.data.tokens.tokenizer_file import save_fast
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.tasks.text.template_check import first_rows, one_of_each_shape, refuse_other_rendering

_ROWS = 32  # of each file as they stand there, and of all of them by their tokens
_ANY_TEXT = "x"
_SHOWN = 4  # tokens


def compare_readers(config: Config, tokens: TokenSet) -> Json | None:
    """Check that transformers tokenises the rows as we do; return why it cannot load the tokenizer, and what vocab.json has otherwise.

    None where neither is so.

    Raises Refusal for the first row, of one of each shape and some of all, on which AutoTokenizer and tokenizer.json differ, or
    transformers' renderer writes otherwise.
    """
    folder = read_model(config.model).folder
    codec = codec_of(config, folder)
    told = {"vocab.json": apart} if (apart := _other_numbers(codec)) else {}
    try:
        theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, AttributeError, ImportError, TypeError) as error:
        names = {"bos_token": codec.template.bos, "eos_token": codec.template.eos}
        refuse_other_rendering(config, codec, dict(codec.template.names) | names)
        return {"transformers": f"cannot load it: {error}"} | told
    refuse_other_rendering(config, codec, theirs.special_tokens_map)
    shapes = ((source, one) for source, _, one in one_of_each_shape(config, codec))
    firsts = ((source, one) for source, _, one in first_rows(config, codec, _ROWS))
    texts = ((str(source), "".join(text for text, _ in row)) for source, one in chain(shapes, firsts) for row in one.sequences)
    _refuse_other_cuts(codec, theirs, chain(texts, _spread_out(codec.tokenizer, tokens)))
    if codec.template.compiled is None:
        _refuse_other_ends(codec, theirs)
    return told or None


def _other_numbers(codec: Codec) -> str | None:
    """Say which tokens a vocab.json in the folder numbers otherwise than tokenizer.json; None where there are none.

    Slow tokenizers of transformers 4 and some engines read it.
    """
    listed = read_json(codec.folder / "vocab.json")
    known = codec.tokenizer.get_vocab()
    apart = [word for word, number in (listed or {}).items() if isinstance(number, int) and known.get(word) != number]
    if not listed or not apart:
        return None
    first = f"{apart[0]!r} is {listed[apart[0]]}, in tokenizer.json {known.get(apart[0], 'not there')}"
    return f"{len(apart):,} of its {len(listed):,} tokens have other numbers ({first}): a program that reads it gives the model other ids"


def _spread_out(ours: Any, tokens: TokenSet) -> Iterator[tuple[str, str]]:
    """Yield (place, text) of some of the rows, evenly spaced."""
    for number in range(0, len(tokens), max(1, len(tokens) // _ROWS)):
        yield str(tokens.source(number)), ours.decode(tokens.row(number)[0].tolist(), skip_special_tokens=False)


def _refuse_other_cuts(codec: Codec, theirs: Any, rows: Iterable[tuple[str, str]]) -> None:
    for source, text in rows:
        file, transformers = codec.tokenizer.encode(text, add_special_tokens=False).ids, theirs(text, add_special_tokens=False)["input_ids"]
        if file != transformers:
            at = next((i for i, (a, b) in enumerate(zip(file, transformers, strict=False)) if a != b), min(len(file), len(transformers)))
            place = f"{source}, token {at + 1} of {len(file)}"
            raise _cut_otherwise(place, codec, theirs, file[at : at + _SHOWN], transformers[at : at + _SHOWN])


def _refuse_other_ends(codec: Codec, theirs: Any) -> None:
    """Raise Refusal where AutoTokenizer puts other tokens around a text than tokenizer.json, which rows without a template learn."""
    file, transformers = codec.tokenizer.encode(_ANY_TEXT).ids, theirs(_ANY_TEXT)["input_ids"]
    if file != transformers:
        raise _cut_otherwise(f"each text, as here {_ANY_TEXT!r}", codec, theirs, file, transformers)


def _cut_otherwise(place: str, codec: Codec, theirs: Any, file: list[int], transformers: list[int]) -> Refusal:
    """Build the refusal of a row whose tokens in training are others than AutoTokenizer's."""
    fast = (codec.folder / "tokenizer.json").exists()
    trained = f"{file} ({codec.tokenizer.decode(file, skip_special_tokens=False)!r})"
    served = f"{transformers} ({theirs.decode(transformers, skip_special_tokens=False)!r})"
    files = "tokenizer.json says" if fast else "vocab.json and merges.txt say"
    text = f"{place}: the model's {files} {trained} where transformers' AutoTokenizer says {served}:"
    text += " what learns from the one and is served the other answers worse, and nothing else would tell"
    return Refusal(
        "tokenizer_or_template", text, f"{_way_out(codec, theirs) if fast else save_fast(codec.folder)}; then start afresh with --run DIR"
    )


def _way_out(codec: Codec, theirs: Any) -> str:
    """Say which setting of tokenizer_config.json to change: a class that has rules of its own, else tokens of the file's own."""
    both = "take tokenizer.json and tokenizer_config.json from one download"
    if type(theirs) is not PreTrainedTokenizerFast:  # which does as tokenizer.json says; since transformers 5 it is TokenizersBackend
        backend = PreTrainedTokenizerFast.__name__
        return f"where tokenizer.json is right, set tokenizer_class to {backend} in the model's tokenizer_config.json; else {both}"
    known = {token.content: number for number, token in codec.tokenizer.get_added_tokens_decoder().items()}
    added = sorted(word for word, number in theirs.get_added_vocab().items() if known.get(word) != number)
    if added:
        return f"take {', '.join(map(repr, added[:_SHOWN]))} out of the model's tokenizer_config.json: tokenizer.json has no such token"
    return both
