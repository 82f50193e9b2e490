"""TRL's SFTTrainer on prompt and completion. Argument: the work as JSON. Options: free (no padding, same rows), pack, group, default."""

import importlib.util
import json
import sys
from pathlib import Path

import torch
from datasets import load_dataset
from kinds import model_of
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

work = json.loads(Path(sys.argv[1]).read_text())
option = work["option"]
torch.set_num_threads(work["threads"])
on_gpu = torch.cuda.is_available()
flash = {"attn_implementation": "flash_attention_2"} if on_gpu and importlib.util.find_spec("flash_attn") else {}


def turns(row):
    question = f"{row['instruction']}\n{row['input']}" if row["input"].strip() else row["instruction"]
    prompt, completion = {"role": "user", "content": question}, {"role": "assistant", "content": row["output"]}
    return {"prompt": [prompt], "completion": [completion]}


rows = load_dataset("json", data_files=work["rows"], split="train")
rows = rows.map(turns, remove_columns=rows.column_names)
model = model_of(work, dtype=torch.bfloat16 if on_gpu else torch.float32, **flash)
settings = SFTConfig(
    work["out"],
    per_device_train_batch_size=work["batch"] if option != "pack" else 4 if on_gpu else 1,
    max_steps=work["steps"],
    learning_rate=work["lr"],
    lr_scheduler_type="constant",
    optim="adamw_torch",
    train_sampling_strategy="group_by_length" if option == "group" else "sequential",
    max_length=None if option == "free" else work["max_tokens"],
    packing=option == "pack",
    padding_free=option == "free",
    gradient_checkpointing=option == "default",
    bf16=work["bf16"],
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    use_cpu=not on_gpu,
    use_liger_kernel=work["liger"],
    disable_tqdm=True,
    seed=work["seed"],
)
tokenizer = AutoTokenizer.from_pretrained(work["model"])
SFTTrainer(model=model, args=settings, train_dataset=rows, processing_class=tokenizer).train()
