"""A tokenizer.json as llama.cpp wants it: byte-level BPE by its merges, SentencePiece-like BPE by scores that give the same merges."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, read_json
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.plain_form import written_template

_QWEN2 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
PRE_TOKENIZERS = {_QWEN2: "qwen2", _LLAMA3: "llama-bpe"}  # llama.cpp knows them by name, and not by their pattern
_BYTE = re.compile(r"^<0x[0-9A-F]{2}>$")
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTES = 1, 2, 3, 4, 5, 6
_NO_MERGE = -1e9


def vocabulary(codec: Codec, size: int, ends: tuple[int, ...], pad: int | None, writer: Any) -> None:
    """Tell a GGUFWriter the tokens, and which of them begin, end and fill. size: rows of the embedding; ends: the first ends an answer.

    Raises Stop(1) for a kind of tokenizer that llama.cpp has no name for.
    """
    tree: Json = json.loads(codec.tokenizer.to_str())
    model = tree["model"]
    if model.get("type") != "BPE":
        raise Stop(BLOCKED, f"a tokenizer of type {model.get('type')} is not converted here", "use llama.cpp's own: --llama-cpp DIR")
    words, kinds = _tokens(tree, size)
    if model.get("byte_fallback"):
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([word.encode() for word in words])
        writer.add_token_scores(_scores(model, words))
        writer.add_token_types(kinds)
        writer.add_add_space_prefix(_prefixes(tree))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_pre(tree))
        writer.add_token_list(words)
        writer.add_token_types(kinds)
        writer.add_token_merges([_write_merge(merge) for merge in model["merges"]])
    if ends:
        writer.add_eos_token_id(ends[0])
    if pad is not None:
        writer.add_pad_token_id(pad)
    bos = _bos(codec.folder, codec)
    if bos is not None:
        writer.add_bos_token_id(bos)
    if model.get("byte_fallback"):
        unknown = model["vocab"].get(model.get("unk_token") or "")
        if unknown is not None:
            writer.add_unk_token_id(unknown)
    writer.add_add_bos_token(adds_bos(codec))
    writer.add_add_eos_token(False)
    writer.add_chat_template(written_template(codec))


def _write_merge(merge: str | list[str]) -> str:
    """Write a merge as llama.cpp reads it, its parts parted by a blank; a blank inside becomes a byte-level token's."""
    return merge if isinstance(merge, str) else " ".join(part.replace(" ", "Ġ") for part in merge)


def _tokens(tree: Json, size: int) -> tuple[list[str], list[int]]:
    """Return (text, kind) of every row of the embedding; rows without a token get a name that no text has."""
    by_number = {number: word for word, number in tree["model"]["vocab"].items()}
    added = {token["id"]: token for token in tree["added_tokens"]}
    unknown = tree["model"].get("unk_token")
    words, kinds = [], []
    for number in range(max(size, *by_number, *added)) if not size else range(size):
        token = added.get(number)
        word = token["content"] if token else by_number.get(number)
        if word is None:
            words.append(f"[PAD{number}]")
            kinds.append(_UNUSED)
            continue
        words.append(word)
        if token and tree["model"].get("byte_fallback") and word == unknown:
            kinds.append(_UNKNOWN)
        elif token:
            kinds.append(_CONTROL if token["special"] else _USER)
        else:
            kinds.append(_BYTES if tree["model"].get("byte_fallback") and _BYTE.match(word) else _NORMAL)
    return words, kinds


def _scores(model: Json, words: list[str]) -> list[float]:
    """Score each token, higher the earlier it is merged: llama.cpp merges the pair with the highest score first."""
    ranks: dict[str, float] = {}
    for rank, merge in enumerate(model["merges"]):
        one, other = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault(one + other, -float(rank))
    return [ranks.get(word, _NO_MERGE) for word in words]


def _prefixes(tree: Json) -> bool:
    """Return whether a blank is put before a text."""
    parts = [tree.get("normalizer") or {}, *((tree.get("normalizer") or {}).get("normalizers") or [])]
    splits = [tree.get("pre_tokenizer") or {}, *((tree.get("pre_tokenizer") or {}).get("pretokenizers") or [])]
    return any(part.get("type") == "Prepend" for part in parts) or any(
        split.get("type") == "Metaspace" and split.get("prepend_scheme") in ("always", "first") for split in splits
    )


def _pre(tree: Json) -> str:
    """Return llama.cpp's name of the rule by which texts are cut into words."""
    pre = tree.get("pre_tokenizer") or {}
    parts = pre.get("pretokenizers") or [pre]
    for part in parts:
        pattern = (part.get("pattern") or {}).get("Regex")
        if part.get("type") == "Split" and pattern in PRE_TOKENIZERS:
            return PRE_TOKENIZERS[pattern]
    if len(parts) == 1 and parts[0].get("type") == "ByteLevel" and parts[0].get("use_regex", True):
        return "gpt-2"
    raise Stop(BLOCKED, "this tokenizer cuts texts into words in a way that is not converted here", "use llama.cpp's own: --llama-cpp DIR")


def adds_bos(codec: Codec) -> bool:
    """Return whether a file says that its texts begin with the bos token: where the tokenizer puts it before texts, as in training.

    A server takes it out of a rendered conversation, whose template may write it, too.
    """
    lead = codec.template.lead
    return bool(codec.bos) or bool(lead and codec.tokenizer.token_to_id(lead) == _bos(codec.folder, codec))


def _bos(folder: Path, codec: Codec) -> int | None:
    settings = read_json(folder / "tokenizer_config.json") or {}
    value = settings.get("bos_token")
    word = value.get("content") if isinstance(value, dict) else value
    number = codec.tokenizer.token_to_id(word) if isinstance(word, str) else None
    return number if isinstance(number, int) else None
