"""Measure by the pass what a rate teaches few rows and what it costs: in one process, with plain PEFT, what `init` chooses otherwise.

    python benchmarks/rates_by_pass.py MODEL ROWS HELD_OUT [--rates 1e-4 2e-4 ...] [--passes 2 5] [--batch 4] [--r 8] [--measured 24]

A line of a table a rate and number of passes, out of one course to the last of them: warmup over a tenth of it, then the rate stays.
The losses are those of held-out rows and of the general text that ships. `rates.py` asks the same of whole runs, which take longer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from holdfast.data.tokens.codec import load_codec
from holdfast.export.samples import Samples, of_file, of_general


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "rows", "held_out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-4, 2e-4, 5e-4, 1e-3])
    parser.add_argument("--passes", nargs="+", type=int, default=[2, 5])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--r", type=int, default=8)
    parser.add_argument("--measured", type=int, default=24, help="rows of the held-out ones, and of the general text, from the beginning")
    asked = parser.parse_args()
    codec = load_codec(asked.model)
    rows, held_out = (of_file(file, codec, 1024) for file in (asked.rows, asked.held_out))
    held_out, general = held_out.first(asked.measured), of_general(codec, 1024).first(asked.measured)
    base = AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.bfloat16)
    print(f"{len(rows)} rows; {len(held_out)} held out, {len(general)} of general text\n", flush=True)
    print("| rate | passes | steps | held-out rows | general text |\n|---|---|---|---|---|", flush=True)
    print(f"| none | 0 | 0 | {loss(base, held_out):.3f} | {loss(base, general):.3f} |", flush=True)
    for rate in asked.rates:
        torch.manual_seed(0)
        lora = LoraConfig(r=asked.r, lora_alpha=2 * asked.r, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(base, lora)
        learned = [one for one in model.parameters() if one.requires_grad]
        for one in learned:
            one.data = one.data.float()
        optimizer, step = torch.optim.AdamW(learned, lr=rate, weight_decay=0.0), 0
        warm = max(1, round(0.1 * max(asked.passes) * len(rows) / asked.batch))
        for passed in range(1, max(asked.passes) + 1):
            order = torch.randperm(len(rows)).tolist()
            for start in range(0, len(rows), asked.batch):
                step += 1
                optimizer.param_groups[0]["lr"] = rate * min(1.0, step / warm)
                lost, tokens = summed(model.train(), [rows.row(number) for number in order[start : start + asked.batch]])
                (lost / tokens).backward()
                torch.nn.utils.clip_grad_norm_(learned, 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if passed in asked.passes:
                print(f"| {rate:g} | {passed} | {step} | {loss(model, held_out):.3f} | {loss(model, general):.3f} |", flush=True)
        base = model.unload()


def summed(model: torch.nn.Module, rows: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, int]:
    """The loss of rows side by side, summed over what is learned of them, and how many tokens that is."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
    learned = torch.tensor([learned + [0] * (longest - len(learned)) for _, learned in rows])[:, 1:]
    mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows])
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1][learned > 0].float()
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:][learned > 0], reduction="sum"), int(learned.sum())


@torch.no_grad()
def loss(model: torch.nn.Module, rows: Samples) -> float:
    """The loss a token of the answers."""
    found = [summed(model.eval(), [rows.row(number) for number in range(at, min(at + 4, len(rows)))]) for at in range(0, len(rows), 4)]
    return sum(float(lost) for lost, _ in found) / sum(tokens for _, tokens in found)


if __name__ == "__main__":
    main()
