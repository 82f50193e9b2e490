"""Does transformers cut text as tokenizer.json does? It takes some tokenizers' rules from the model's type, whatever the file says.

A model trained on one cutting and used with the other is worse than it should be, and nothing else would ever say so.
"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from holdfast.base.files import Json
from holdfast.data.tokens.codec import load_codec
from holdfast.data.tokens.token_set import TokenSet

_ROWS = 32


def disagreement(folder: Path, tokens: TokenSet) -> Json | None:
    """The first of some rows on which AutoTokenizer and tokenizer.json differ, or None when they agree on all of them.

    A tokenizer that transformers cannot load at all (saved by another version of it, say) is a disagreement, too.
    """
    ours = load_codec(folder).tokenizer
    try:
        theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, AttributeError, ImportError) as error:
        return {"transformers": f"cannot load it: {error}"}
    for number in range(0, len(tokens), max(1, len(tokens) // _ROWS)):
        text = ours.decode(tokens.row(number)[0].tolist(), skip_special_tokens=False)
        file, transformers = ours.encode(text, add_special_tokens=False).ids, theirs(text, add_special_tokens=False)["input_ids"]
        if file != transformers:
            at = next((i for i, (a, b) in enumerate(zip(file, transformers, strict=False)) if a != b), min(len(file), len(transformers)))
            return {
                "row": str(tokens.source(number)),
                "token": at,
                "tokenizer_json": file[at : at + 4],
                "transformers": transformers[at : at + 4],
            }
    return None
