"""transformers' Trainer with PEFT, or on all weights, as its documentation shows it. One argument: the work as JSON.

Option: group (rows of like length).
"""

import json
import sys
from pathlib import Path

import torch
from datasets import load_dataset
from kinds import model_of
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

work = json.loads(Path(sys.argv[1]).read_text())
torch.set_num_threads(work["threads"])
tokenizer = AutoTokenizer.from_pretrained(work["model"])


def encode(rows):
    found = {"input_ids": [], "labels": [], "attention_mask": []}
    for instruction, extra, answer in zip(rows["instruction"], rows["input"], rows["output"], strict=True):
        question = f"{instruction}\n{extra}" if extra.strip() else instruction
        turns = [{"role": "user", "content": question}]
        given = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        given, learned = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (given, f"{answer}<|im_end|>\n"))
        ids = (given + learned)[: work["max_tokens"]]
        found["input_ids"].append(ids)
        found["labels"].append(([-100] * len(given) + learned)[: work["max_tokens"]])
        found["attention_mask"].append([1] * len(ids))
    return found


rows = load_dataset("json", data_files=work["rows"], split="train")
rows = rows.map(encode, batched=True, remove_columns=rows.column_names)
model = model_of(work)
settings = TrainingArguments(
    work["out"],
    per_device_train_batch_size=work["batch"],
    max_steps=work["steps"],
    learning_rate=work["lr"],
    lr_scheduler_type="constant",
    optim="adamw_torch",
    train_sampling_strategy="group_by_length" if work["option"] == "group" else "sequential",
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    bf16=work["bf16"],
    disable_tqdm=True,
    seed=work["seed"],
)
collate = DataCollatorForSeq2Seq(tokenizer, padding=True, label_pad_token_id=-100)
Trainer(model=model, args=settings, train_dataset=rows, data_collator=collate, processing_class=tokenizer).train()
