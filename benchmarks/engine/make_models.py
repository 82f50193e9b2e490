"""Make the models the programs here train: random weights from a fixed seed, a tokenizer, a chat template. They know nothing.

    python benchmarks/engine/make_models.py OUT --size 12m [--tokenizer FOLDER]
    python benchmarks/engine/make_models.py OUT --size qwen0.5b --tokenizer FOLDER_OF_QWEN2.5
    python benchmarks/engine/make_models.py OUT --size qwen7b --stored bfloat16

FOLDER holds a tokenizer.json, or vocab.json and merges.txt; by default that of the embedded model tiny is used. The template is
ChatML without a system turn of its own, so that every trainer writes the same tokens. --vocabulary and --layers change the shape.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

SIZES = {
    "test": {"vocab_size": 3584, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    "6m": {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6, "num_attention_heads": 4},
    "12m": {"vocab_size": 8192, "hidden_size": 384, "intermediate_size": 960, "num_hidden_layers": 6, "num_attention_heads": 6},
    "qwen0.5b": {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "qwen7b": {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
}
KV_HEADS = {"test": 1, "qwen7b": 4}
POSITIONS = 32768
TINY = Path(__file__).parents[2] / "src/holdfast/models/tiny"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_model(
    out: Path, size: str, tokenizer: Path, vocabulary: int | None = None, layers: int | None = None, stored: str = "float32"
) -> int:
    """Write the model folder `out`; the number of parameters."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = SIZES[size] | ({"vocab_size": vocabulary} if vocabulary else {}) | ({"num_hidden_layers": layers} if layers else {})
    fast = load_tokenizer(tokenizer)
    if len(fast) > shape["vocab_size"]:
        raise SystemExit(f"the tokenizer has {len(fast):,} tokens, the model {shape['vocab_size']:,}")
    torch.manual_seed(0)
    config = Qwen2Config(
        **shape,
        num_key_value_heads=KV_HEADS.get(size, 2),
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=size != "qwen7b",
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM(config).to(getattr(torch, stored))
    model.save_pretrained(out, max_shard_size="100GB")
    fast.save_pretrained(out)
    settings = json.loads((out / "tokenizer_config.json").read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.pop("backend", None)  # what older releases of transformers, which some trainers pin, do not know
    (out / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}, indent=2))
    return sum(weight.numel() for weight in model.parameters())


def load_tokenizer(folder: Path):
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    if (folder / "tokenizer.json").exists():
        inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        inner = _from_merges(folder)
    vocabulary = inner.get_vocab()
    pad = next(token for token in ("<|pad|>", "<|endoftext|>") if token in vocabulary)
    missing = {"<|im_start|>", "<|im_end|>"} - vocabulary.keys()
    if missing:
        raise SystemExit(f"the tokenizer in {folder.name} lacks {missing}")
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", pad_token=pad)
    fast.chat_template = TEMPLATE
    return fast


def _from_merges(folder: Path):
    """A byte-level tokenizer as Qwen2 builds it, with the special tokens its tokenizer_config.json names."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    inner = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    inner.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(words), "isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    inner.decoder = decoders.ByteLevel()
    added = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    inner.add_special_tokens([AddedToken(entry["content"], special=True, normalized=False) for _, entry in sorted(added.items())])
    return inner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=SIZES, default="12m")
    parser.add_argument("--tokenizer", type=Path, default=TINY)
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--stored", choices=("float32", "bfloat16"), default="float32", help="how the weights lie in the file")
    given = parser.parse_args()
    count = make_model(given.out, given.size, given.tokenizer, given.vocabulary, given.layers, given.stored)
    print(f"{given.out.name}: {count:,} parameters")


if __name__ == "__main__":
    main()
