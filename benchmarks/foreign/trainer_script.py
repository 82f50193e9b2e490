"""A script of transformers' Trainer as its documentation shows it: HfArgumentParser, a model, rows, PEFT. It knows nothing of holdfast."""

from dataclasses import dataclass

from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class Work:
    model: str
    rows: str


arguments, work = HfArgumentParser((TrainingArguments, Work)).parse_args_into_dataclasses()
tokenizer = AutoTokenizer.from_pretrained(work.model)


def encode(row):
    ids = tokenizer.apply_chat_template(row["messages"], tokenize=False)
    ids = tokenizer(ids, add_special_tokens=False)["input_ids"][:64]
    return {"input_ids": ids, "labels": ids, "attention_mask": [1] * len(ids)}


rows = load_dataset("json", data_files=work.rows, split="train")
rows = rows.map(encode, remove_columns=rows.column_names)
set_seed(arguments.seed)
lora = LoraConfig(r=4, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM")
model = get_peft_model(AutoModelForCausalLM.from_pretrained(work.model), lora)
collate = DataCollatorForSeq2Seq(tokenizer, padding=True, label_pad_token_id=-100)
trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate, processing_class=tokenizer)
trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
