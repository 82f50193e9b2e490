"""The model that Trainer and TRL train, by the work's kind: PEFT as its documentation shows it, or all weights."""

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def model_of(work, **given):
    kind, halves = work["kind"], torch.bfloat16 if work["bf16"] else torch.float32
    if kind == "qlora":
        given["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=halves)
    model = AutoModelForCausalLM.from_pretrained(work["model"], **{"dtype": torch.float32, **given})
    if kind == "full":
        return model
    if kind == "qlora":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    lora = LoraConfig(
        r=work["rank"],
        lora_alpha=work["alpha"],
        lora_dropout=0.0,
        target_modules="all-linear",
        use_dora=kind == "dora",
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(work["seed"])
    return get_peft_model(model, lora)
