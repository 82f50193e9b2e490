"""TRL's DPOTrainer on pairs, the reference being the adapter switched off. One argument: the work as JSON.

It pads: padding_free is switched off in TRL 1.16.
"""

import json
import sys
from pathlib import Path

import torch
from datasets import load_dataset
from kinds import model_of
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer

work = json.loads(Path(sys.argv[1]).read_text())
torch.set_num_threads(work["threads"])


def turns(row):
    answers = {name: [{"role": "assistant", "content": row[name]}] for name in ("chosen", "rejected")}
    return {"prompt": [{"role": "user", "content": row["prompt"]}], **answers}


rows = load_dataset("json", data_files=work["rows"], split="train")
rows = rows.map(turns, remove_columns=rows.column_names)
settings = DPOConfig(
    work["out"],
    per_device_train_batch_size=work["batch"],
    max_steps=work["steps"],
    learning_rate=work["lr"],
    lr_scheduler_type="constant",
    optim="adamw_torch",
    train_sampling_strategy="sequential",
    max_length=work["max_tokens"],
    gradient_checkpointing=False,
    bf16=work["bf16"],
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
    seed=work["seed"],
)
tokenizer = AutoTokenizer.from_pretrained(work["model"])
DPOTrainer(model=model_of(work), args=settings, train_dataset=rows, processing_class=tokenizer).train()
