"""What other trainers call the keys of a config. A table; knows nothing else."""

from __future__ import annotations

_ELSEWHERE = {  # names of the Trainer's arguments, of PEFT, Axolotl and LLaMA-Factory
    "model": "base_model model_name model_name_or_path pretrained_model_name_or_path",
    "data.files": "dataset datasets dataset_path train_file train_data",
    "data.held_out": "val_set_size val_size test_size",
    "data.held_out_files": "validation_file eval_file eval_dataset test_datasets",
    "adapter.r": "lora_r lora_rank rank",
    "adapter.alpha": "lora_alpha",
    "adapter.dropout": "lora_dropout",
    "adapter.targets": "target_modules lora_target_modules lora_target lora_target_linear",
    "adapter.start": "lora_model_dir adapter_name_or_path",
    "train.epochs": "num_epochs num_train_epochs",
    "train.steps": "max_steps",
    "train.effective_batch": "batch_size micro_batch_size per_device_train_batch_size gradient_accumulation_steps",
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
