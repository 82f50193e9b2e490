"""Each step's loss of holdfast beside a plain reference on the same samples: full weights by the Trainer, fp16 by torch's own autocast.

    PYTHON_OF_PEERS benchmarks/engine/plain.py OUT [full fp16]

Run by an interpreter that has holdfast's packages and transformers; HOLDFAST_PYTHON: one that trains, if another. `holdfast train` runs
first, on the embedded model; the tokens of its steps are then given to the reference in their order. The Trainer takes fp16 on a GPU
alone, so fp16 is held against PEFT under torch.autocast with torch's GradScaler. Prints a table; OUT keeps both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from holdfast.base_model.folder import read_model
from holdfast.data.token_set.token_set import TokenSet, load_tokens

STEPS, BATCH = 8, 8
LR = {"full": 5e-4, "fp16": 3e-3}
MODEL = read_model("tiny").folder
Batch = dict[str, torch.Tensor]


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    print(f"{'what':<8}{'largest difference of a step loss':>36}   losses of holdfast / of the reference")
    for what in sys.argv[2:] or LR:
        ours, batches = _ours(out, what)
        theirs = _by_trainer(out, batches) if what == "full" else _by_autocast(out, batches)
        apart = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
        pairs = "  ".join(f"{a:.6f} / {b:.6f}" for a, b in zip(ours, theirs, strict=True))
        print(f"{what:<8}{apart:>36.1e}   {pairs}", flush=True)


def _ours(out: Path, what: str) -> tuple[list[float], list[Batch]]:
    """(losses, batches) of the steps."""
    file, run, config = out / "rows.jsonl", out / f"run-{what}", out / f"{what}.json"
    rows = [{"instruction": f"Name {at} of ember", "output": f"ember {at} and {'more ' * (at % 5)}"} for at in range(STEPS * BATCH)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = {"steps": STEPS, "effective_batch": BATCH, "lr": LR[what], "schedule": "constant", "warmup": 0, "frozen": "fp32"}
    tree = {
        "model": "tiny",
        "data": {"files": [str(file)], "held_out": 0.0},
        "adapter": {"type": "full"} if what == "full" else {"start": str(_start(out))},
        "train": train | {"precision": "fp32" if what == "full" else "fp16"},
        "evaluate": {"generate": 0},
    }
    config.write_text(json.dumps(tree))
    if not (run / "summary.json").exists():
        python = os.environ.get("HOLDFAST_PYTHON", sys.executable)
        subprocess.run([python, "-m", "holdfast", "train", str(config), "--run", str(run), "--quiet"], check=True)
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    tokens = load_tokens(run / "data.safetensors")
    return [step["loss"] for step in steps], [_batch(tokens, step["samples"]) for step in steps]


def _start(out: Path) -> Path:
    """An adapter that both begin with."""
    folder = out / "start"
    if not folder.exists():
        torch.manual_seed(3)
        wanted = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
        get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32), wanted).save_pretrained(folder)
    return folder


def _batch(tokens: TokenSet, samples: list[int]) -> Batch:
    """The samples of a step, padded on the right: [samples, longest]."""
    width = max(tokens.length(number) for number in samples)
    shape = (len(samples), width)
    batch = {"input_ids": torch.full(shape, tokens.pad), "attention_mask": torch.zeros(shape, dtype=torch.long)}
    batch["labels"] = torch.full(shape, -100)
    for at, number in enumerate(samples):
        ids, learned = (torch.from_numpy(values.astype("int64")) for values in tokens.row(number))
        batch["input_ids"][at, : len(ids)] = ids
        batch["attention_mask"][at, : len(ids)] = 1
        batch["labels"][at, : len(ids)] = ids.where(learned.bool(), -100)
    return batch


def _by_trainer(out: Path, batches: list[Batch]) -> list[float]:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    settings: dict[str, Any] = {"lr_scheduler_type": "constant", "optim": "adamw_torch", "weight_decay": 0.0, "max_grad_norm": 1.0}
    plain: dict[str, Any] = {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}

    class InOrder(Trainer):
        """Takes the batches as they stand."""

        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(batches, batch_size=None)  # type: ignore[arg-type]

    arguments = TrainingArguments(str(out / "trainer"), max_steps=STEPS, learning_rate=LR["full"], **settings, **plain)
    trainer = InOrder(model=model, args=arguments, train_dataset=batches)  # type: ignore[arg-type]
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def _by_autocast(out: Path, batches: list[Batch]) -> list[float]:
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32), _start(out), is_trainable=True)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR["fp16"], weight_decay=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=2000)
    losses = []
    for batch in batches:
        with torch.autocast("cpu", torch.float16):
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses


if __name__ == "__main__":
    main()
