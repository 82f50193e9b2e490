"""Make a small Qwen2 model with random weights and a tokenizer trained on a row file. For tests and benchmarks; it knows nothing.

python scripts/make_model.py OUT --rows rows.jsonl [--size test|5m]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

SIZES = {
    "test": {"vocab_size": 400, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    "5m": {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 5, "num_attention_heads": 4},
}
# How transformers' Qwen2 tokenizer cuts text into words: AutoTokenizer takes this from the model's type, whatever tokenizer.json says.
QWEN2_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_model(out: Path, rows: Path, size: str, seed: int = 0) -> None:
    """Write config, random weights (fp32 safetensors) and a byte-level BPE tokenizer with a chat template to `out`."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    shape = SIZES[size]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=shape["vocab_size"],
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with rows.open(encoding="utf-8") as handle:
        texts = [" ".join(str(value) for value in json.loads(line).values()) for line in handle]
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|pad|>")
    fast.chat_template = TEMPLATE
    torch.manual_seed(seed)
    config = Qwen2Config(
        **shape,
        num_key_value_heads=max(1, shape["num_attention_heads"] // 2),
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).float().save_pretrained(out)
    fast.save_pretrained(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="5m")
    arguments = parser.parse_args()
    make_model(arguments.out, arguments.rows, arguments.size)
