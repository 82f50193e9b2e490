"""Each step's loss of holdfast beside TRL's on the same samples, the same adapter to begin with and the same optimizer.

    PYTHON_OF_TRL benchmarks/engine/preferences.py OUT [OBJECTIVE ...]

Run by an interpreter that has both holdfast's packages and TRL's (1.16 was used); HOLDFAST_PYTHON: one that trains, if another.
`holdfast train` runs first, on the embedded model; the samples of its steps are then given to TRL's trainer in their order. A scalar head
is drawn by the run, so reward is compared from its first checkpoint on, by an optimizer without a memory. Prints a table; OUT keeps both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from holdfast.base_model.folder import read_model

STEPS, BATCH, LR, SGD_LR = 6, 8, 3e-3, 0.1
MODEL = read_model("tiny").folder
WORDS = ("amber", "basalt", "cedar", "delta", "ember", "fjord", "granite", "harbour", "iris", "juniper", "kelp", "lantern")


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    rows = [_row(at) for at in range(64)]
    start = out / "start"
    if not start.exists():
        torch.manual_seed(3)
        wanted = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
        get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32), wanted).save_pretrained(start)
    print(f"{'objective':<10}{'largest difference of a step loss':>36}   losses of holdfast / of TRL")
    for objective in sys.argv[2:] or ("dpo", "orpo", "kto", "reward"):
        ours, samples = _ours(out, objective, rows, start)
        if objective == "reward":
            ours, samples = ours[1:], samples[1:]
            theirs = _theirs(out, objective, rows, out / "run-reward/checkpoints/step-00000001", samples)
        else:
            theirs = _theirs(out, objective, rows, start, samples)
        apart = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
        pairs = "  ".join(f"{a:.6f} / {b:.6f}" for a, b in zip(ours, theirs, strict=True))
        print(f"{objective:<10}{apart:>36.1e}   {pairs}", flush=True)


def _row(at: int) -> dict[str, Any]:
    word, other = WORDS[at % 12], WORDS[(at * 5 + 3) % 12]
    return {"prompt": f"Name {at} of {word}", "chosen": f"{word} {at}", "rejected": f"{other} and more {at}", "label": at % 3 > 0}


def _marked(row: dict[str, Any]) -> dict[str, Any]:
    turns = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["chosen"]}]
    return {"messages": turns, "label": row["label"]}


def _ours(out: Path, objective: str, rows: list[dict[str, Any]], start: Path) -> tuple[list[float], list[list[int]]]:
    """(losses, samples) of the steps."""
    file, run = out / f"{objective}.jsonl", out / f"run-{objective}"
    marked = objective == "kto"
    kept = [_marked(row) if marked else row for row in rows]
    file.write_text("".join(json.dumps({k: v for k, v in row.items() if marked or k != "label"}) + "\n" for row in kept))
    config = out / f"{objective}.json"
    train = {"objective": objective, "steps": STEPS, "effective_batch": BATCH, "lr": LR, "schedule": "constant", "warmup": 0}
    scored = objective == "reward"
    tree = {
        "model": "tiny",
        "data": {"files": [str(file)], "held_out": 0.0},
        "adapter": {"r": 8, "alpha": 16, "dropout": 0.0} if scored else {"start": str(start)},
        "train": train | {"precision": "fp32"} | ({"optimizer": "sgd", "beta1": 0.0, "lr": SGD_LR} if scored else {}),
        "save": {"every": 1, "keep": STEPS},
        "evaluate": {"generate": 0},
    }
    config.write_text(json.dumps(tree))
    if not (run / "summary.json").exists():
        python = os.environ.get("HOLDFAST_PYTHON", sys.executable)
        subprocess.run([python, "-m", "holdfast", "train", str(config), "--run", str(run), "--quiet"], check=True)
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    return [step["loss"] for step in steps], [step["samples"] for step in steps]


def _theirs(out: Path, objective: str, rows: list[dict[str, Any]], start: Path, samples: list[list[int]]) -> list[float]:
    """TRL's losses of the same samples in the same order."""
    import transformers
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    scored = objective == "reward"
    kind = AutoModelForSequenceClassification if scored else AutoModelForCausalLM
    base = kind.from_pretrained(MODEL, dtype=torch.float32, **({"num_labels": 1} if scored else {}))
    model = PeftModel.from_pretrained(base, start, is_trainable=True)
    order = [rows[at] for step in samples for at in (reversed(step) if objective == "kto" else step)]
    asked = [[{"role": "user", "content": row["prompt"]}] for row in order]
    answers = {name: [[{"role": "assistant", "content": row[name]}] for row in order] for name in ("chosen", "rejected")}
    common: dict[str, Any] = {
        "output_dir": str(out / f"trl-{objective}"),
        "max_steps": len(samples),
        "per_device_train_batch_size": BATCH,
        "learning_rate": SGD_LR if scored else LR,
        "optim": "sgd" if scored else "adamw_torch",
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "max_length": 512,
        "disable_dropout": True,
        "remove_unused_columns": False,
    }
    if objective == "kto":
        data = Dataset.from_dict({"prompt": asked, "completion": answers["chosen"], "label": [row["label"] for row in order]})
        kinds: Any = (KTOTrainer, KTOConfig)
    elif scored:
        data = Dataset.from_dict({"prompt": asked} | answers)
        kinds = (RewardTrainer, RewardConfig)
    else:
        data = Dataset.from_dict({"prompt": asked} | answers)
        kinds = (DPOTrainer, DPOConfig)
        if objective == "orpo":
            from trl.experimental.orpo import ORPOConfig, ORPOTrainer

            kinds = (ORPOTrainer, ORPOConfig)
    trainer_kind, config_kind = kinds

    class InOrder(trainer_kind):  # type: ignore[valid-type, misc]
        """Takes the rows as they stand."""

        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def concatenated_forward(self, *given: Any, **more: Any) -> Any:
            """Of ORPO: TRL's own counts the prompt's tokens in the answer's loss, and a long answer for more than a short one."""
            chosen, *rest = super().concatenated_forward(*given, **more)
            rest[3] = -chosen.mean()
            return chosen, *rest

    transformers.logging.set_verbosity_error()
    trainer = InOrder(model=model, args=config_kind(**common), train_dataset=data, processing_class=tokenizer)
    if objective == "orpo":  # which puts a second end behind the template's
        answers_of = [name for name in trainer.train_dataset.column_names if name.startswith(("chosen_", "rejected_"))]
        trainer.train_dataset = trainer.train_dataset.map(lambda row: {name: row[name][:-1] for name in answers_of})
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    main()
