"""Unsloth's patched SFTTrainer on prompt and completion, without padding. Argument: the work as JSON. Needs a GPU."""

# isort: off
from unsloth import FastLanguageModel  # first: it changes what the others import

import json
import sys
from pathlib import Path

import torch
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

work = json.loads(Path(sys.argv[1]).read_text())
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def turns(row):
    question = f"{row['instruction']}\n{row['input']}" if row["input"].strip() else row["instruction"]
    prompt, completion = {"role": "user", "content": question}, {"role": "assistant", "content": row["output"]}
    return {"prompt": [prompt], "completion": [completion]}


model, tokenizer = FastLanguageModel.from_pretrained(
    work["model"], max_seq_length=work["max_tokens"], dtype=torch.bfloat16, load_in_4bit=work["kind"] == "qlora"
)
model = FastLanguageModel.get_peft_model(
    model,
    r=work["rank"],
    lora_alpha=work["alpha"],
    lora_dropout=0.0,
    target_modules=LINEAR,
    bias="none",
    use_gradient_checkpointing=False,
    random_state=work["seed"],
)
rows = load_dataset("json", data_files=work["rows"], split="train")
rows = rows.map(turns, remove_columns=rows.column_names)
settings = SFTConfig(
    work["out"],
    per_device_train_batch_size=work["batch"],
    gradient_accumulation_steps=1,  # its own default is 2
    max_steps=work["steps"],
    learning_rate=work["lr"],
    lr_scheduler_type="constant",
    train_sampling_strategy="sequential",
    optim="adamw_torch",
    max_length=work["max_tokens"],
    padding_free=True,
    bf16=True,
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    seed=work["seed"],
)
SFTTrainer(model=model, args=settings, train_dataset=rows, processing_class=tokenizer).train()
