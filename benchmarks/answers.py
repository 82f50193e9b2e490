"""Throughput of `verify`'s batched, cached greedy answers beside transformers' generate, one prompt after the other, on a CPU.

    python benchmarks/answers.py [--model DIR] [--prompts 150] [--longest 48] [--endless]

Both give the same tokens, or the number of prompts that part is told. CPU seconds say more than wall time on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import transformers

from holdfast.base_model.folder import EMBEDDED
from holdfast.trainer.model.greedy import greedy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=EMBEDDED["tiny"])
    parser.add_argument("--prompts", type=int, default=150)
    parser.add_argument("--longest", type=int, default=48)
    parser.add_argument("--endless", action="store_true", help="no token ends an answer: all are as long as they may be")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    rng = torch.Generator().manual_seed(0)
    lengths = torch.randint(12, 60, (arguments.prompts,), generator=rng).tolist()
    words = model.config.vocab_size
    prompts = [torch.randint(5, words, (length,), generator=rng).tolist() for length in lengths]
    ends = [] if arguments.endless else [2]
    greedy(model, prompts[:2], 0, ends, 2)
    began, cpu = time.perf_counter(), time.process_time()
    ours = [answer.ids for answer in greedy(model, prompts, 0, ends, arguments.longest)]
    ours_s, ours_cpu = time.perf_counter() - began, time.process_time() - cpu
    began, cpu = time.perf_counter(), time.process_time()
    theirs = [plain(model, prompt, ends, arguments.longest) for prompt in prompts]
    theirs_s, theirs_cpu = time.perf_counter() - began, time.process_time() - cpu
    tokens = sum(map(len, ours))
    found = {
        "model": arguments.model.name,
        "prompts": len(prompts),
        "tokens": tokens,
        "other_answers": sum(a != b for a, b in zip(ours, theirs, strict=True)),
    }
    found |= {"seconds": [round(ours_s, 2), round(theirs_s, 2)], "cpu_seconds": [round(ours_cpu, 2), round(theirs_cpu, 2)]}
    print(json.dumps(found | {"times": round(theirs_s / ours_s, 2), "times_per_cpu_second": round(theirs_cpu / ours_cpu, 2)}))


def plain(model: object, prompt: list[int], ends: list[int], longest: int) -> list[int]:
    ids = torch.tensor([prompt])
    given = {
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": longest,
        "do_sample": False,
        "eos_token_id": ends or -1,
        "pad_token_id": 0,
    }
    with torch.inference_mode():
        found = model.generate(ids, **given)[0, len(prompt) :].tolist()  # type: ignore[attr-defined]
    return found[:-1] if found and found[-1] in ends else found


if __name__ == "__main__":
    main()
