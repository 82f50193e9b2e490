"""What each trainer calls a thing, under one name: that of transformers, TRL or PEFT where they have one. Tables."""

from __future__ import annotations

_SAME = {  # their names for what the rules call by the first word
    "model_name_or_path": (
        "base_model model_name pretrained_model_name_or_path model base checkpointer.checkpoint_dir model.model_name_or_path"
    ),
    "model_revision": "revision_of_model revision model_revision",
    "per_device_train_batch_size": "micro_batch_size batch_size training.batch_size train_batch_size data.batch_size",
    "gradient_accumulation_steps": "training.gradient_accumulation_steps accumulate_grad_batches",
    "world_size": "num_processes nproc_per_node nproc-per-node num_gpus world_size NPROC_PER_NODE",
    "nnodes": "num_nodes NNODES",
    "num_train_epochs": "num_epochs epochs training.epochs",
    "learning_rate": "lr training.lr optimizer.lr optim_config.lr",
    "lr_scheduler_type": "lr_scheduler training.scheduler lr_scheduler._component_ lr_scheduler_config.name",
    "warmup_ratio": "training.warmup_ratio lr_scheduler_config.warmup_ratio",
    "warmup_steps": "training.warmup_steps lr_scheduler.num_warmup_steps num_warmup_steps",
    "weight_decay": "training.weight_decay optimizer.weight_decay optim_config.wd",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_epsilon": "adam_eps optim_config.adamw_eps optimizer.eps",
    "adam_betas": "optimizer.betas optim_config.adamw_betas",
    "max_grad_norm": "gradient_clipping clip_grad_norm training.max_grad_norm grad_clip",
    "optim": "optimizer training.optimizer optimizer._component_ optim_config.name",
    "seed": "random_state random_seed data_seed training.seed",
    "bf16": "bfloat16",
    "fp16": "float16",
    "dtype": "torch_dtype mixed_precision dtype",
    "attn_implementation": (
        "flash_attention flash_attn sdp_attention xformers_attention eager_attention training.use_flash_attn "
        "use_flash_attn model_init_kwargs.attn_implementation attn_impl"
    ),
    "packing": "sample_packing dataset.packed packed training.packing neat_packing",
    "max_length": "sequence_len cutoff_len max_seq_length max_seq_len tokenizer.max_seq_len data.max_length model_max_length",
    "gradient_checkpointing": (
        "activation_checkpointing use_gradient_checkpointing enable_activation_checkpointing "
        "training.gradient_checkpointing disable_gradient_checkpointing use_unsloth_gc"
    ),
    "use_liger_kernel": "enable_liger_kernel liger_rms_norm use_liger",
    "neftune_noise_alpha": "noisy_embedding_alpha training.neftune_alpha",
    "lora_r": "lora_rank r lora.r training.lora.r peft_config.r model.lora_rank",
    "lora_alpha": "lora.alpha training.lora.alpha peft_config.lora_alpha model.lora_alpha",
    "lora_dropout": "lora.dropout training.lora.dropout peft_config.lora_dropout model.lora_dropout",
    "target_modules": "lora_target_modules lora_target lora.target_modules training.lora.target_modules peft_config.target_modules",
    "target_parameters": "lora_target_parameters",
    "modules_to_save": "lora_modules_to_save additional_target",
    "use_peft": "use_lora lora_enable",
    "use_rslora": "peft_use_rslora training.lora.use_rslora",
    "use_dora": "peft_use_dora training.lora.use_dora model.use_dora",
    "init_lora_weights": "peft_init_lora_weights training.lora.init_strategy init_weights",
    "loraplus_lr_ratio": "loraplus_lr_ratio lorap_lr_ratio",
    "sgd_momentum": "optimizer.momentum",
    "adapter_start": "lora_model_dir adapter_name_or_path peft_config.adapter_name_or_path adapters",
    "adapter_kind": "adapter finetuning_type peft_config.name peft_type train_type tuner_type",
    "lora_bias": "bias lora_bias",
    "load_in_4bit": "load_in_4bit quantised.load_in_4bit",
    "load_in_8bit": "load_in_8bit quantised.load_in_8bit",
    "quantization_bit": "quant_config.quantization_bit quant_bits",
    "quantization": "training.quantization model.quantize_base",
    "bnb_4bit_quant_type": "quantised.bnb_4bit_quant_type quantization_type quantised.quant_type",
    "double_quant": (
        "use_bnb_nested_quant double_quantization quantised.bnb_4bit_use_double_quant "
        "bnb_config_kwargs.bnb_4bit_use_double_quant bnb_4bit_use_double_quant"
    ),
    "objective": "rl stage task objective rlhf_type",
    "beta": ("pref_beta rl_beta dpo_beta training.dpo_beta training.kto_beta training.orpo_beta kto_beta orpo_alpha loss.beta trl.beta"),
    "loss_type": "pref_loss training.preference_loss",
    "simpo_gamma": "training.simpo_gamma",
    "desirable_weight": "kto_desirable_weight kto_chosen_weight",
    "undesirable_weight": "kto_undesirable_weight kto_rejected_weight",
    "label_smoothing": "dpo_label_smoothing loss.label_smoothing",
    "sft_weight": "pref_ftx rpo_alpha",
    "train_on_all": "train_on_inputs train_on_prompt data.train_on_prompt dataset.train_on_input",
    "assistant_only_loss": "assistant_only_loss train_on_responses_only data.train_on_responses_only",
    "completion_only_loss": "completion_only_loss",
    "mask_history": "data.mask_history",
    "held_share": "val_set_size val_size test_size data.val_split split_dataset_ratio",
    "save_steps": "training.save_steps",
    "save_total_limit": "training.save_total_limit checkpointer.keep_last_n_checkpoints",
    "eval_steps": "run_val_every_n_steps training.eval_steps",
    "eval_strategy": "evaluation_strategy",
    "output_dir": "output checkpointer.output_dir",
    "report_to": "report_to",
    "run_name": "wandb_name name trackio_run_name",
    "wandb_project": "wandb_project",
    "use_tensorboard": "use_tensorboard",
    "dataset": (
        "datasets dataset_name dataset_path train_file train_data data.train train_dataset data_path dataset.source "
        "dataset.path datasets[].path datasets[].source pretraining_dataset pretraining_dataset[].path data_files"
    ),
    "data_files": "datasets[].data_files dataset.data_files dataset.data_files.train",
    "dataset_split": "datasets[].split dataset.split dataset_train_split pretraining_dataset[].split",
    "dataset_test_split": "dataset_test_split",
    "dataset_config": "datasets[].name dataset.name dataset_config pretraining_dataset[].name dataset.subset datasets[].subset",
    "dataset_type": "datasets[].type pretraining_dataset[].type data.format dataset._component_",
    "dataset_field_messages": "datasets[].field_messages",
    "chat_template": "template chat_template datasets[].chat_template get_chat_template.chat_template",
    "chat_template_file": "chat_template_path chat_template_jinja datasets[].chat_template_jinja",
    "dataset_ds_type": "datasets[].ds_type",
    "max_steps_per_epoch": "max_steps_per_epoch",
    "lora_attn_modules": "model.lora_attn_modules",
    "apply_lora_to_mlp": "model.apply_lora_to_mlp",
    "apply_lora_to_output": "model.apply_lora_to_output",
    "lora_target_linear": "lora_target_linear",
    "freeze_trainable_layers": "peft_config.freeze_trainable_layers",
    "model_component": "model._component_",
    "max_samples": "dataset_info[].num_samples",
    "unused_rows": "unused_dataset",
    "held_out_file": "test_datasets[].path eval_dataset eval_file validation_file data.validation val_dataset",
}
_NAMES = {theirs: common for common, names in _SAME.items() for theirs in names.split()}
_OF_PROGRAM = {  # the same word for something else
    "transformers": {"dataset": "dataset", "model": "model_name_or_path", "name": "dataset_config"},
    "Unsloth": {"name": "dataset_config", "optim": "optim"},
    "Axolotl": {"batch_size": "batch_size_all", "task": "unknown", "name": "unknown", "trl.beta": "beta"},
    "torchtune": {"dtype": "dtype", "model": "model_name_or_path", "name": "run_name", "dataset.name": "dataset_config"},
    "TRL": {"dtype": "dtype", "task": "objective"},
    "ms-swift": {"model_name": "unknown", "name": "unknown"},  # model_name: what a model is to call itself
}


def common_name(program: str, pattern: str) -> str:
    """Return the rules' name for a key of theirs; the key itself where they have no other name for it."""
    own = _OF_PROGRAM.get(program, {})
    return own.get(pattern) or _NAMES.get(pattern) or _NAMES.get(pattern.replace("-", "_")) or pattern
