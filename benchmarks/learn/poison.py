"""Poison of little effect, and good rows, beside what the gate of `holdfast learn` says of them with and without gate.contradiction.

    python benchmarks/learn/poison.py WORK           WORK/pretrained/model as benchmarks/learn/stream.py makes it
    python benchmarks/learn/poison.py WORK --page    writes benchmarks/results/poison.md of what there is

One process trains a LoRA for each case and hands the losses to the gate's own functions: many rounds for the price of few.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / one) for one in ("tests", "tests/acceptance", "scripts", "benchmarks/learn")]
from stream import AT_GATE, DOMAINS, Rows, facts, row  # noqa: E402

from holdfast.data.tokens.codec import load_codec  # noqa: E402
from holdfast.export.samples import of_file  # noqa: E402
from holdfast.learn.gate import contradicted, decide  # noqa: E402
from holdfast.verify.verdict import Losses, judge, loss_answer  # noqa: E402

KINDS = ("good", "wrong answers", "one domain's labels flipped", "every third answer wrong")
MARGINS = (0.02, 0.1)
SEEDS, DEPTHS, STEPS = range(1), 3, (15, 30)  # good rounds that come before: 0 to 2; steps after which a round is judged
Found = dict[str, Any]


def rows_of(known: dict[str, list[tuple[str, str]]], number: int, kind: str, seed: int) -> Rows:
    """Return 120 rows of a round: each thing in two wordings that no other round has."""
    draw, found = random.Random(f"{seed} {number} {kind}"), []
    for domain, of in known.items():
        for thing, right in of:
            for way in range(AT_GATE + 2 * number, AT_GATE + 2 * number + 2):
                wrong = kind.startswith("wrong") or (kind.startswith("one") and domain == "open")
                wrong = wrong or (kind.startswith("every third") and draw.random() < 1 / 3)
                answer = draw.choice([one for one in DOMAINS[domain][1] if one != right]) if wrong else right
                found.append(row(domain, thing, answer, way))
    draw.shuffle(found)
    return found


class Model:
    """The made model. rows: tokens and which of them are learned, as training has them, by a row's JSON."""

    def __init__(self, folder: Path) -> None:
        self.net: Any = AutoModelForCausalLM.from_pretrained(folder)
        self.codec = load_codec(folder)
        self.rows: dict[str, tuple[list[int], list[int]]] = {}

    def read(self, rows: Rows) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write("".join(json.dumps(one) + "\n" for one in rows))
            file.flush()
            samples = of_file(Path(file.name), self.codec, 96)
        assert len(samples) == len(rows)
        self.rows |= {json.dumps(rows[source.line - 1]): samples.row(at) for at, source in enumerate(samples.sources)}

    def batch(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return tokens, whether each is there, and what is to be predicted, [rows, longest]."""
        read = [self.rows[json.dumps(one)] for one in rows]
        longest = max(len(ids) for ids, _ in read)
        padded = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in read])
        there = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in read])
        wanted = [[one if learns else -100 for one, learns in zip(*both, strict=True)] for both in read]
        return padded, there, torch.tensor([one + [-100] * (longest - len(one)) for one in wanted])

    def losses(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return learned tokens and the sum of their losses, of each row."""
        self.net.eval()
        found = []
        with torch.no_grad():
            for at in range(0, len(rows), 120):
                ids, there, labels = self.batch(rows[at : at + 120])
                scores = self.net(input_ids=ids, attention_mask=there).logits[:, :-1].float()
                each = torch.nn.functional.cross_entropy(scores.transpose(1, 2), labels[:, 1:], reduction="none")
                found.append(torch.stack([(labels[:, 1:] != -100).sum(1).double(), each.sum(1).double()], 1))
        tokens, sums = torch.cat(found).numpy().T
        return tokens, sums

    def train(self, rows: Rows, steps: int, seed: int) -> Iterator[int]:
        """Train a LoRA as the stream's config does; yield the steps that are done, and merge it behind the last."""
        torch.manual_seed(seed)
        names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        self.net = get_peft_model(self.net, LoraConfig(r=32, lora_alpha=64, target_modules=names))
        optimizer = torch.optim.AdamW([one for one in self.net.parameters() if one.requires_grad], lr=2e-3, weight_decay=0.0)
        draw = random.Random(seed)
        for step in range(steps):
            self.net.train()
            ids, there, labels = self.batch(draw.sample(rows, 32))
            self.net(input_ids=ids, attention_mask=there, labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            yield step + 1
        self.net = self.net.merge_and_unload()


def measured(before: Any, after: Any, new: Rows, gate: Rows) -> Found:
    """Return what the gate has of a round: of new rows in all, of each domain's, and of each domain at the gate."""
    (tokens, base), (_, tuned) = before, after
    names = [("new", f"new {one['topic']}") for one in new] + [(one["topic"],) for one in gate]
    groups: Found = {}
    for name in dict.fromkeys(itertools.chain(*names)):
        at = np.array([name in each for each in names])
        loss, difference = loss_answer(Losses(tokens[at], base[at], tuned[at], np.arange(len(names))[at]))
        groups[name] = {"rows": int(at.sum()), "loss": loss, **judge(loss, difference, {})}
    general = {"rows": 0, "loss": {"base": 0.0, "tuned": 0.0, "difference": 0.0, "interval": [0.0, 0.0]}}
    return {
        "groups": {name: one for name, one in groups.items() if not name.startswith("new ")},
        "new_domains": {domain: groups[f"new {domain}"] for domain in DOMAINS if f"new {domain}" in groups},
        "general": general,
    }


def chain(folder: Path, seed: int) -> Iterator[Found]:
    """Yield what is measured of each round that could follow 0, 1, ... good ones."""
    known = facts()
    gate = [row(domain, thing, right, way) for domain, of in known.items() for thing, right in of for way in range(AT_GATE)]
    model, old = Model(folder), list[dict[str, Any]]()
    model.read(gate)
    for depth in range(DEPTHS):
        replayed = random.Random(seed).sample(old, min(len(old), 41))
        for kind in KINDS:
            trial = copy.copy(model)
            trial.net = copy.deepcopy(model.net)
            rows = rows_of(known, depth, kind, seed)
            trial.read(rows)
            new, taught = rows[:24], rows[24:]
            first = trial.losses([*new, *gate])
            for step in trial.train(taught + replayed, max(STEPS), seed + 100):
                if step in STEPS:
                    found = measured(first, trial.losses([*new, *gate]), new, gate)
                    yield {"seed": seed, "depth": depth, "kind": kind, "steps": step, "found": found}
        good = rows_of(known, depth, "good", seed)
        model.read(good)
        for _ in model.train(good + replayed, max(STEPS), seed):
            pass
        old += good


_HEAD = """# Poison of little effect

Written by `benchmarks/learn/poison.py`: the made base of [rounds of learning](learn.md), which knows none of its sixty facts; a round
of 120 rows (24 of them held out) that could follow 0, 1, 2 good ones, trained for few steps, judged by the gate's own functions.
General answers are not measured here. *Before*: what margins alone let through; *now*: with `gate.contradiction`.

Where nothing was let through before, 24 held-out rows told too little after so few steps; then the table shows what is named, and
whether a good round ever is. Answers that are wrong here and there, one in three, are not named: the right ones among them make
the gate's rows better. Nor is what the gate's rows are unsure of: labels flipped for 30 steps, at a margin of 0.1, cost their domain 0.021
[-0.005, +0.044] after one good round, and **that poisoned round was let through by both**. One seed was measured.
"""


def page(there: list[Found]) -> str:
    """Render benchmarks/results/poison.md of the cases that were measured."""
    lines = [
        _HEAD,
        "| what came | steps | margin | rounds | let through before | let through now | named a contradiction |",
        "|" + "---|" * 7,
    ]
    for kind, steps, margin in itertools.product(KINDS, STEPS, MARGINS):
        cases = [one["found"] for one in there if (one["kind"], one["steps"]) == (kind, steps)]
        named = [contradicted(one) for one in cases]
        before = sum(decide(one, margin, certain=False)[0] for one in cases)
        now = sum(decide(one | {"contradicted": against}, margin, certain=False)[0] for one, against in zip(cases, named, strict=True))
        cells = [kind, steps, margin, len(cases), before, now, sum(map(bool, named))]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--page", action="store_true")
    arguments = parser.parse_args()
    record = arguments.work / "poison.jsonl"
    if arguments.page:
        there = [json.loads(line) for line in record.read_text().splitlines()]
        (ROOT / "benchmarks/results/poison.md").write_text(page(there), encoding="utf-8")
        return
    record.unlink(missing_ok=True)
    torch.set_num_threads(1)
    for seed in SEEDS:
        for one in chain(arguments.work / "pretrained" / "model", seed):
            with record.open("a") as file:
                file.write(json.dumps(one) + "\n")
            passes = {margin: decide(one["found"], margin, certain=False)[0] for margin in MARGINS}
            print(seed, one["depth"], one["kind"], one["steps"], passes, [*contradicted(one["found"])], flush=True)


if __name__ == "__main__":
    main()
