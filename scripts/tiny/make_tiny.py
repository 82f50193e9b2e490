"""Make the embedded base model: tokenizer, pretraining from scratch, folder. It fetches nothing, tunes nothing and reads no recipe.

    python scripts/tiny/make_tiny.py [--out src/holdfast/models/tiny] [--steps 2400] [--seed 1] [--state build/tiny.pt]

One command, about an hour on two idle cores; stopped, the same command goes on from its state. All text comes from corpus.py (copying,
filling values into made-up commands, facts, talk), so the result knows forms and no real tool's options: these are what a fine-tuning
run shall visibly teach. The parts: words.py, values.py, forms.py and facts.py hold the material, skills.py composes exercises,
wiring.py sets the first weights, muon.py moves them.

Same seed, same text in the same order. The newest weights and the state of the optimizer are written at intervals; stopping early
leaves a model that works.

Needs torch, transformers, tokenizers, numpy. Writes config.json, generation_config.json, model.safetensors (bf16), tokenizer.json,
tokenizer_config.json (with the chat template).
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from corpus import documents
from muon import MuonWithAdamW
from skills import SKILLS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2TokenizerFast
from wiring import wire_for_copying
from words import VOCABULARY

CONTEXT = 1024  # what the config promises; training windows are shorter
WINDOW = 256
BATCH = 12
MATRIX_LR, OTHER_LR = 0.02, 3e-3
WARMUP_STEPS = 100
ASKED_WEIGHT = 0.1  # what people say is mostly dice; what is answered can be known
SAVE_EVERY_S = 300.0
PAD, EOS, START, BREAK = "<|pad|>", "<|im_end|>", "<|im_start|>", "<|endoftext|>"
CUT = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
QWEN_CUT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main() -> None:
    options = read_options()
    torch.manual_seed(options.seed)
    tokenizer = make_tokenizer(options.seed, options.vocabulary)
    model = make_model(tokenizer)
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    save(model, tokenizer, options.out)
    pretrain(model, tokenizer, options)
    save(model, tokenizer, options.out)
    print(" ".join(f"{skill}={loss:.3f}" for skill, loss in judge(model, tokenizer).items()))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Pretrain the embedded base model from generated text.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "src/holdfast/models/tiny")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--state", type=Path, default=Path("build/tiny.pt"), help="what an interrupted training goes on from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=3584)
    return parser.parse_args()


def make_tokenizer(seed: int, vocabulary: int) -> Qwen2TokenizerFast:
    """Train a byte-level BPE. Words, single digits and punctuation never merge with each other, so that a value is cut alike everywhere.

    The merges are learned with CUT; the finished tokenizer carries Qwen2's own expression, because transformers 5 puts that one in for
    every model of this architecture. It cuts less finely, and no merge can use the difference.
    """
    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = byte_level(CUT)
    core.decoder = decoders.ByteLevel()
    specials = [AddedToken(text, special=True, normalized=False) for text in (BREAK, START, EOS, PAD)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(chain(islice(documents(seed), 15_000), [f"{word} {word}" for word in VOCABULARY] * 60), trainer)
    core.pre_tokenizer = byte_level(QWEN_CUT)
    return Qwen2TokenizerFast(
        tokenizer_object=core,
        eos_token=EOS,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        padding_side="right",
    )


def byte_level(cut: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(cut), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def make_model(tokenizer: Qwen2TokenizerFast) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    wire_for_copying(model)
    return model


def pretrain(model: Qwen2ForCausalLM, tokenizer: Qwen2TokenizerFast, options: argparse.Namespace) -> None:
    optimizer = MuonWithAdamW(model)
    step = resume(options.state, model, optimizer)
    stream = islice(windows(tokenizer, options.seed, options.steps), step, None)
    began = saved = time.monotonic()
    mean, first = 0.0, step
    while step < options.steps:
        height = min(1.0, (step + 1) / WARMUP_STEPS) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / options.steps)))
        loss = weighted_loss(model, *next(stream))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(MATRIX_LR * height, OTHER_LR * height)
        step += 1
        mean = 0.98 * mean + 0.02 * loss.item() if mean else loss.item()
        if step % 50 == 0:
            seconds = time.monotonic() - began
            speed = (step - first) * BATCH * WINDOW / seconds
            print(f"step {step} loss {mean:.3f} {seconds / 60:.1f} min {speed:.0f} tokens/s", flush=True)
        if time.monotonic() - saved > SAVE_EVERY_S:
            save(model, tokenizer, options.out)
            keep(options.state, model, optimizer, step)
            saved = time.monotonic()
    options.state.unlink(missing_ok=True)


def keep(file: Path, model: Qwen2ForCausalLM, optimizer: MuonWithAdamW, step: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    staged = file.with_suffix(".tmp")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state(), "step": step}, staged)
    staged.replace(file)


def resume(file: Path, model: Qwen2ForCausalLM, optimizer: MuonWithAdamW) -> int:
    """Put a kept state back; the number of steps it has seen, 0 when there is none."""
    if not file.exists():
        return 0
    kept = torch.load(file)
    model.load_state_dict(kept["model"])
    if kept["optimizer"] is not None:
        optimizer.load(kept["optimizer"])
    print(f"going on after step {kept['step']}", flush=True)
    return int(kept["step"])


def weighted_loss(model: Qwen2ForCausalLM, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=ids[:, :-1]).logits
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    wanted = weights[:, 1:].flatten()
    return (losses * wanted).sum() / wanted.sum()


def windows(tokenizer: Qwen2TokenizerFast, seed: int, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield packed batches [BATCH, WINDOW + 1] of ids and loss weights. Batch k depends on seed, steps and k alone."""
    length = WINDOW + 1
    ids, weights = np.empty(0, np.int64), np.empty(0, np.float32)
    for chunk in range(1_000_000):
        progress = min(1.0, 2.0 * chunk * 10 / steps)  # the late mixture is reached half-way
        texts = islice(documents(seed * 1_000_003 + chunk, progress), 10 * BATCH * 3)
        parts = [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch(list(texts))]
        fresh = np.array([token for part in parts for token in part], np.int64)
        ids, weights = np.concatenate([ids, fresh]), np.concatenate([weights, answer_weights(fresh, tokenizer)])
        for _ in range(10):
            if len(ids) < BATCH * length:
                break
            taken = BATCH * length
            yield torch.from_numpy(ids[:taken].reshape(BATCH, length)), torch.from_numpy(weights[:taken].reshape(BATCH, length))
            ids, weights = ids[taken:], weights[taken:]


def answer_weights(ids: np.ndarray, tokenizer: Qwen2TokenizerFast) -> np.ndarray:
    """Weigh what is asked by ASKED_WEIGHT and all other text by 1."""
    start, end = tokenizer.convert_tokens_to_ids(START), tokenizer.convert_tokens_to_ids(EOS)
    user = tokenizer.encode("user", add_special_tokens=False)[0]
    place = np.arange(len(ids))
    asks = (ids == start) & (np.roll(ids, -1) == user)
    last_ask = np.maximum.accumulate(np.where(asks, place, -1))
    last_end = np.maximum.accumulate(np.where(ids == end, place, -1))
    return np.where((last_ask > last_end), ASKED_WEIGHT, 1.0).astype(np.float32)


@torch.no_grad()
def judge(model: Qwen2ForCausalLM, tokenizer: Qwen2TokenizerFast) -> dict[str, float]:
    """Mean loss of the last answer (or of the whole text where nobody asks) per skill, on documents never trained on."""
    from random import Random

    model.eval()
    losses: dict[str, float] = {}
    for skill, make in SKILLS.items():
        rng, found = Random(f"judge {skill}"), []
        for _ in range(60):
            ids = torch.tensor([tokenizer.encode(make(rng), add_special_tokens=False)[:CONTEXT]])
            starts = (ids[0] == tokenizer.convert_tokens_to_ids(START)).nonzero().flatten().tolist()
            wanted = torch.zeros_like(ids, dtype=torch.float32)
            wanted[0, starts[-1] + 3 if starts else 0 :] = 1.0
            found.append(weighted_loss(model, ids, wanted).item())
        losses[skill] = sum(found) / len(found)
    model.train()
    return losses


def save(model: Qwen2ForCausalLM, tokenizer: Qwen2TokenizerFast, folder: Path) -> None:
    """Write the whole folder; the running model stays in fp32."""
    folder.mkdir(parents=True, exist_ok=True)
    half = Qwen2ForCausalLM(model.config).to(torch.bfloat16)
    half.load_state_dict(model.state_dict())
    half.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False, max_new_tokens=96
    )
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)


if __name__ == "__main__":
    main()
