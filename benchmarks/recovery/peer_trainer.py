"""What people do today: transformers' Trainer with PEFT, a checkpoint every so many steps, `resume_from_checkpoint` at each start.

    python benchmarks/recovery/peer_trainer.py ORDERS.json

Started again by a loop or by torchrun; goodput.py writes the orders, reads the steps and kills it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Told(TrainerCallback):  # type: ignore[misc]
    """Writes down each finished step, once for all ranks; sleeps in each as long as it was told."""

    def __init__(self, file: Path, wait_s: float) -> None:
        self.file, self.wait_s = file, wait_s

    def on_step_begin(self, _args: Any, _state: Any, _control: Any, **_more: Any) -> None:
        time.sleep(self.wait_s)

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_more: Any) -> None:
        if not state.is_world_process_zero:
            return
        with self.file.open("a") as handle:
            handle.write(json.dumps({"step": state.global_step, "time": time.time()}) + "\n")


def main() -> None:
    orders = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(orders["folder"])
    model, data, collate = begun(orders, int(os.environ.get("RANK", 0)))
    options = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=orders["steps"],
        per_device_train_batch_size=orders["batch"],
        save_steps=orders["save_steps"],
        save_total_limit=2,
        logging_steps=10_000,
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo" if "RANK" in os.environ else None,
        disable_tqdm=True,
    )
    told = Told(folder / "steps.jsonl", orders["wait"])
    trainer = Trainer(model=model, args=options, train_dataset=data, data_collator=collate, callbacks=[told])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(options.output_dir) if Path(options.output_dir).is_dir() else None)


def begun(orders: dict[str, Any], number: int) -> tuple[Any, list[Any], Any]:
    """Say which process is rank `number`; (the model with its adapter, the rows as tokens, what makes a batch of them)."""
    (Path(orders["folder"]) / f"pid{number}").write_text(str(os.getpid()))
    torch.set_num_threads(orders["threads"])
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(orders["model"])
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(orders["model"], dtype=torch.float32),
        LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    rows = [json.loads(line) for line in Path(orders["rows"]).read_text().splitlines()[:2000]]
    return model, [_encoded(row, tokenizer) for row in rows], DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100)


def _encoded(row: dict[str, str], tokenizer: Any) -> dict[str, list[int]]:
    prompt = tokenizer(row["instruction"] + "\n")["input_ids"]
    answer = tokenizer(row["output"])["input_ids"]
    ids = (prompt + answer)[:256]
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ([-100] * len(prompt) + answer)[:256]}


if __name__ == "__main__":
    main()
