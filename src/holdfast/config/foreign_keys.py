"""What other trainers call the keys of a config, and which of theirs have none of ours. Tables; reads no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.config.objectives import OBJECTIVES, either, objectives_of

_ELSEWHERE = {  # names of the Trainer's arguments, of PEFT, Axolotl and LLaMA-Factory
    "model": "base_model model_name model_name_or_path pretrained_model_name_or_path",
    "data.files": "dataset datasets dataset_path dataset_name train_file train_data",
    "data.held_out": "val_set_size val_size test_size",
    "data.held_out_files": "validation_file eval_file eval_dataset test_datasets",
    "adapter.r": "lora_r lora_rank rank",
    "adapter.alpha": "lora_alpha",
    "adapter.dropout": "lora_dropout",
    "adapter.targets": "target_modules lora_target_modules lora_target lora_target_linear",
    "adapter.start": "lora_model_dir adapter_name_or_path",
    "train.epochs": "num_epochs num_train_epochs",
    "train.steps": "max_steps",
    "train.effective_batch": "batch_size batchsize micro_batch_size per_device_train_batch_size gradient_accumulation_steps "
    "train_batch_size "
    "grad_accumulation_steps accumulate_grad_batches",
    "train.lr": "learning_rate",
    "train.schedule": "lr_scheduler lr_scheduler_type scheduler",
    "train.warmup": "warmup_ratio warmup_steps",
    "train.beta1": "adam_beta1",
    "train.beta2": "adam_beta2",
    "train.epsilon": "adam_epsilon adam_eps eps",
    "train.max_grad_norm": "gradient_clipping clip_grad_norm grad_clip",
    "train.precision": "bf16 fp16 tf32 dtype torch_dtype mixed_precision",
    "train.attention": "attn_implementation flash_attention flash_attn sdp_attention",
    "train.max_tokens": "max_seq_length max_seq_len max_length sequence_len cutoff_len model_max_length",
    "train.packing": "sample_packing",
    "train.checkpointed_layers": "gradient_checkpointing activation_checkpointing",
    "save.every": "save_steps save_strategy",
    "save.keep": "save_total_limit",
    "evaluate.every": "eval_steps evaluation_strategy eval_strategy evals_per_epoch",
    "evaluate.patience": "early_stopping_patience",
    "evaluate.max_new_tokens": "eval_max_new_tokens",
    "run.name": "output_dir run_name wandb_name",
    "run.track": "report_to logging_dir wandb_project",
}
OURS = {theirs: ours for ours, names in _ELSEWHERE.items() for theirs in names.split()}
_HELD_AGAINST = (*objectives_of("pairs"), *objectives_of("marks"))
_NO_KEY = {  # why some have none of ours
    f"train.objective: {either(list(OBJECTIVES))}": "stage sft rlhf rl",
    "`holdfast train` trains; evaluate.every evaluates on the way": ("do_train do_eval do_predict do_test predict_with_generate"),
    "the chat template is the model's own; data.chat_template gives another": "template conversation default_system",
    "the device is chosen by itself, the first GPU, else the CPU; CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES hides others": (
        "device devices device_map use_cpu no_cuda cuda gpu gpus"
    ),
    "adapter: {type: full} trains all weights": "full full_finetune full_finetuning full_fine_tune",
    "adapter.type names the kind": ("finetuning_type peft_type peft lora use_lora use_peft lora_config qlora"),
    "train.frozen holds the base model in nf4, fp4 or int8": (
        "load_in_8bit load_in_4bit quantization_bit quantization_method bnb_4bit_quant_type "
        "bnb_4bit_compute_dtype double_quantization quantization bnb_config_kwargs"
    ),
    "train.offload: layers keeps frozen layers in main memory": "layer_offloading cpu_offload fsdp_cpu_offload fsdp_offload_params",
    "adapter.type and the keys of `adapter`": (
        "use_dora use_rslora lora_modules_to_save additional_target lora_fan_in_fan_out loraplus_lr_ratio pissa_init"
    ),
    "code of a model's own is never run": "trust_remote_code",
    "rows are tokenised once and packed without it": (
        "dataset_dir dataset_prepared_path preprocessing_num_workers overwrite_cache dataset_processes "
        "dataloader_num_workers tokenized_path streaming shuffle_merged_datasets group_by_length "
        "pad_to_sequence_len eval_sample_packing remove_unused_columns"
    ),
    "`holdfast data sample` draws rows": "max_samples",
    "data.train_on: assistant, last or all": "train_on_inputs train_on_prompt mask_history",
    "a run folder is never overwritten": "overwrite_output_dir",
    "the same command resumes an unfinished run": "resume_from_checkpoint auto_resume_from_checkpoints",
    "each step is logged and drawn": (
        "logging_steps logging_strategy logging_first_step plot_loss include_tokens_per_second include_num_input_tokens_seen"
    ),
    "train.optimizer names it": "optim optim_args",
    "train.ranks: auto trains on every device, train.fsdp: true cuts the model between them": (
        "deepspeed fsdp_config ddp_timeout local_rank ddp_find_unused_parameters tensor_parallel_degree"
    ),
    "model and tokenizer are taken as they are": (
        "special_tokens added_tokens resize_vocab tokenizer_type model_type is_llama_derived_model strict tokenizer"
    ),
    "run.track names a tracker": "wandb_entity wandb_watch wandb_run_id wandb_log_model",
    "nothing is uploaded": "hub_model_id push_to_hub hub_strategy",
    "evaluate.keep_best": "load_best_model_at_end metric_for_best_model greater_is_better",
    f"train.objective ({', '.join(_HELD_AGAINST)}) and the keys of `preference`": "pref_beta pref_loss dpo kto",
    "there is no such objective": "ppo_epochs reward_model ref_model",
    "there is no such setting": "label_smoothing_factor",
}
NO_KEY = {theirs: why for why, names in _NO_KEY.items() for theirs in names.split()}

_OF_LLAMA_FACTORY = (
    "stage do_train finetuning_type lora_target lora_rank template cutoff_len dataset_dir plot_loss overwrite_cache "
    "preprocessing_num_workers quantization_bit flash_attn"
)
_OF_AXOLOTL = (
    "base_model sequence_len micro_batch_size sample_packing pad_to_sequence_len dataset_prepared_path val_set_size lora_target_linear "
    "train_on_inputs special_tokens num_epochs wandb_project lora_model_dir flash_attention evals_per_epoch load_in_8bit datasets"
)
_OF_THE_TRAINER = (
    "model_name_or_path output_dir per_device_train_batch_size per_device_eval_batch_size num_train_epochs learning_rate "
    "lr_scheduler_type warmup_ratio logging_steps save_steps dataset_name bf16 fp16 gradient_checkpointing report_to use_peft"
)
_PROGRAMS = {"LLaMA-Factory": _OF_LLAMA_FACTORY, "Axolotl": _OF_AXOLOTL, "transformers or TRL": _OF_THE_TRAINER}
_ENOUGH = 3  # keys that tell a program
_BATCHES = ("micro_batch_size", "per_device_train_batch_size", "batch_size", "train_batch_size")
_ACCUMULATIONS = ("gradient_accumulation_steps", "grad_accumulation_steps", "accumulate_grad_batches")
_PRODUCT = "train.effective_batch is the rows of a step, micro-batch times accumulation"
FACTORS = dict.fromkeys((*_BATCHES, *_ACCUMULATIONS), _PRODUCT)


def program_of(tree: Mapping[str, Any]) -> str:
    """Return the other program a config is for, by its keys; empty where it has a section of ours, or too few of theirs."""
    if any(isinstance(tree.get(section), dict) for section in ("data", "train")):
        return ""
    counts = {program: len(set(keys.split()) & tree.keys()) for program, keys in _PROGRAMS.items()}
    best = max(counts, key=lambda program: counts[program])
    return best if counts[best] >= _ENOUGH else ""


def translated(tree: Mapping[str, Any]) -> list[str]:
    """Return a line for each key of another program's config: its key here, or why it has none."""
    product = _rows_of_a_step(tree)
    lines = [f"{' x '.join(product)} -> train.effective_batch: {_product(tree, product)}"] if len(product) > 1 else []
    for key, value in tree.items():
        if key in product and len(product) > 1:
            continue
        if key in OURS:
            shown = f": {value}" if isinstance(value, int | float | str) else ""
            lines.append(f"{key}{shown} -> {OURS[key]}")
        elif key in NO_KEY:
            lines.append(f"{key}: {NO_KEY[key]}")
        elif key == "adapter":
            lines.append(f"{key}: {NO_KEY['lora']}")
        else:
            lines.append(f"{key}: not known here")
    return lines


def _rows_of_a_step(tree: Mapping[str, Any]) -> list[str]:
    """Return the keys whose product is the number of rows of a step."""
    keys = [next((key for key in names if isinstance(tree.get(key), int)), "") for names in (_BATCHES, _ACCUMULATIONS)]
    return [key for key in keys if key]


def _product(tree: Mapping[str, Any], keys: list[str]) -> int:
    """Multiply the values of the two keys."""
    first, second = (int(tree[key]) for key in keys)
    return first * second
