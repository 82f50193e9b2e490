"""How each contender is started on a piece of work: argument lists and configurations, nothing else. Starts nothing.

A peer's name is PEER-SETTING. `plain` is what its documentation shows, with gradient checkpointing off; the others are what it offers
against padding: `group` (rows of like length together), `pack` (rows behind each other in rows of max_tokens, one per step), `free`
(the same rows as plain, behind each other in one row). trl-default is plain with the gradient checkpointing TRL switches on by itself.
hf and trl also run in bf16 mixed precision, what holdfast chooses for itself where the machine is fast at it: PEER-SETTING-bf16; on a
GPU also with Liger's kernels: PEER-SETTING-liger-bf16, which for Axolotl includes its own LoRA kernels.
LitGPT has nothing of the kind.

What is trained on what is the work's kind: LoRA, which all can, or another of KINDS, for which Trainer and TRL alone are asked. qlora is
LoRA on weights in nf4 by bitsandbytes (without double quantisation, computed in the contender's arithmetic); dpo is TRL's alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from work import Work

HERE = Path(__file__).parent
PEERS = HERE / "peers"
PLAIN = ("hf-plain", "trl-plain", "litgpt-plain", "torchtune-plain", "llamafactory-plain", "axolotl-plain")
BEST = ("hf-group", "trl-free", "trl-pack", "trl-group", "torchtune-pack", "llamafactory-pack", "axolotl-pack", "axolotl-group")
BF16 = ("hf-plain-bf16", "hf-group-bf16", "trl-free-bf16")
ON_GPU = ("trl-pack-bf16", "trl-pack-liger-bf16", "trl-free-bf16", "axolotl-pack-bf16", "axolotl-pack-liger-bf16")
ON_GPU += ("trl-free-liger-bf16", "torchtune-pack-bf16", "unsloth-free-bf16")
KINDS: dict[str, dict[str, dict[str, object]]] = {  # what holdfast is told of each
    "lora": {},
    "qlora": {"train": {"frozen": "nf4"}},
    "dora": {"adapter": {"type": "dora"}},
    "full": {"adapter": {"type": "full"}},
    "dpo": {"train": {"objective": "dpo"}},
}
NAMES = (*PLAIN, *BEST, *BF16, "trl-default", "llamafactory-group")
SWITCHES = ("bf16", "liger")


def environment_of(name: str) -> str:
    """The folder name of the environment a contender lives in."""
    peer = name.partition("-")[0]
    return "hf" if peer == "trl" else peer


def option_of(name: str) -> str:
    setting = "-".join(part for part in name.split("-")[1:] if part not in SWITCHES)
    return "" if setting == "plain" else setting


def holdfast(work: Work, folder: Path, overrides: list[str]) -> list[str]:
    """Arguments for `python`. No rows are held out and none answered, because no peer does that."""
    config: dict[str, Any] = {
        "model": work.model,
        "data": {"files": work.rows, "held_out": 0.0},
        "adapter": {"r": work.rank, "alpha": work.alpha, "dropout": 0.0},
        "train": {
            "steps": work.steps,
            "effective_batch": work.batch,
            "lr": work.lr,
            "schedule": "constant",
            "warmup": 0,
            "max_tokens": work.max_tokens,
            "threads": work.threads,
            "seed": work.seed,
        },
        "evaluate": {"generate": 0},
    }
    if work.kind == "full":
        config["adapter"] = {}  # has no rank
    for section, keys in KINDS[work.kind].items():
        config[section] |= keys
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    return ["-m", "holdfast", "train", str(file), *overrides, "--run", str(folder / "run"), "--quiet"]


def peer(name: str, work: Work, folder: Path) -> list[str]:
    """Arguments for the peer's python, behind the probe."""
    probe = [str(PEERS / "probe.py"), str(folder / "steps.jsonl"), str(work.pad)]
    return [*probe, *_STARTS[name.partition("-")[0]](work, folder)]


def _program(file: str) -> Callable[[Work, Path], list[str]]:
    return lambda work, folder: [str(PEERS / file), str(work.save(folder / "work.json"))]


def torchtune_config(work: Work) -> dict[str, Any]:
    """What its LoRA recipe for one device is told."""
    packed = work.option == "pack"
    tokenizer = {"_component_": "torchtune_parts.tokenizer", "folder": work.model, "max_tokens": work.max_tokens, "pad": work.pad}
    return {
        "output_dir": work.out,
        "model": {
            "_component_": "torchtune_parts.model",
            "folder": work.model,
            "lora_attn_modules": ["q_proj", "k_proj", "v_proj", "output_proj"],
            "apply_lora_to_mlp": True,
            "lora_rank": work.rank,
            "lora_alpha": work.alpha,
        },
        "tokenizer": tokenizer,
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer",
            "checkpoint_dir": work.model,
            "checkpoint_files": ["model.safetensors"],
            "recipe_checkpoint": None,
            "output_dir": work.out,
            "model_type": "QWEN2",
        },
        "resume_from_checkpoint": False,
        "save_adapter_weights_only": True,
        "dataset": {"_component_": "torchtune_parts.rows", "path": work.rows, "packed": packed},
        "seed": work.seed,
        "shuffle": False,
        "batch_size": 1 if packed else work.batch,
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": work.lr, "weight_decay": 0.0},
        "lr_scheduler": {"_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup", "num_warmup_steps": 0},
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "epochs": 1,
        "max_steps_per_epoch": work.steps,
        "gradient_accumulation_steps": 1,
        "clip_grad_norm": 1.0,
        "compile": False,
        "metric_logger": {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": work.out},
        "log_every_n_steps": 10,
        "log_peak_memory_stats": False,
        "device": work.device,
        "dtype": "bf16" if work.bf16 else "fp32",
        "enable_activation_checkpointing": False,
        "enable_activation_offloading": False,
    }


def _torchtune(work: Work, folder: Path) -> list[str]:
    return [str(PEERS / "torchtune_start.py"), "--config", str(_yaml(folder / "torchtune.yaml", torchtune_config(work)))]


def _litgpt(work: Work, folder: Path) -> list[str]:
    """`work.model` is a LitGPT checkpoint here (peers/litgpt_model.py)."""
    switches = {
        "precision": "32-true",
        "lora_r": work.rank,
        "lora_alpha": work.alpha,
        "lora_dropout": 0.0,
        "lora_key": "true",
        "lora_projection": "true",
        "lora_mlp": "true",
        "data": "JSON",
        "data.json_path": Path(work.rows).with_suffix(".json"),
        "data.val_split_fraction": 0.001,
        "data.mask_prompt": "true",
        "data.prompt_style": "qwen3",
        "data.num_workers": 0,
        "train.global_batch_size": work.batch,
        "train.micro_batch_size": work.batch,
        "train.lr_warmup_steps": 1,
        "train.epochs": 1,
        "train.max_steps": work.steps,
        "train.max_seq_length": work.max_tokens,
        "train.save_interval": 10**6,
        "eval.interval": 10**6,
        "eval.initial_validation": "false",
        "eval.final_validation": "false",
        "eval.max_iters": 1,
        "eval.max_new_tokens": 5,
        "seed": work.seed,
        "out_dir": work.out,
    }
    return ["-m", "litgpt", "finetune_lora", work.model, *(str(part) for key, value in switches.items() for part in (f"--{key}", value))]


def _llamafactory(work: Work, folder: Path) -> list[str]:
    packed = work.option == "pack"
    rows = {"file_name": work.rows, "columns": {"prompt": "instruction", "query": "input", "response": "output"}}
    (folder / "dataset_info.json").write_text(json.dumps({"rows": rows}))
    config = {
        "model_name_or_path": work.model,
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora",
        "lora_rank": work.rank,
        "lora_alpha": work.alpha,
        "lora_dropout": 0.0,
        "lora_target": "all",
        "disable_gradient_checkpointing": True,
        "flash_attn": "sdpa",
        "dataset": "rows",
        "dataset_dir": str(folder),
        "template": "chatml",
        "cutoff_len": work.max_tokens,
        "packing": packed,
        "neat_packing": packed,
        "disable_shuffling": work.option != "group",
        "per_device_train_batch_size": 1 if packed else work.batch,
        "gradient_accumulation_steps": 1,
        "max_steps": work.steps,
        **_trainer_settings(work),
        "use_cpu": True,
        "overwrite_cache": True,
    }
    if work.option == "group":
        config["train_sampling_strategy"] = "group_by_length"
    return [str(PEERS / "llamafactory_start.py"), str(_yaml(folder / "llamafactory.yaml", config))]


def _axolotl(work: Work, folder: Path) -> list[str]:
    packed = work.option == "pack"
    rows = {
        "path": str(Path(work.rows).with_suffix(".messages.jsonl")),
        "ds_type": "json",
        "type": "chat_template",
        "field_messages": "messages",
        "roles_to_train": ["assistant"],
        "train_on_eos": "turn",
    }
    config = {
        "base_model": work.model,
        "chat_template": "chatml",
        "datasets": [rows],
        "dataset_prepared_path": str(folder / "prepared"),
        "val_set_size": 0.0,
        "adapter": "lora",
        "lora_r": work.rank,
        "lora_alpha": work.alpha,
        "lora_dropout": 0.0,
        "lora_target_linear": True,
        "sequence_len": work.max_tokens,
        "sample_packing": packed,
        "pad_to_sequence_len": False,
        "group_by_length": work.option == "group",
        "shuffle_merged_datasets": False,
        "micro_batch_size": 1 if packed else work.batch,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
        "max_steps": work.steps,
        "sdp_attention": True,
        **dict.fromkeys(("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"), work.liger),  # they are Triton's, for GPUs
        "tf32": False,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "optimizer": "adamw_torch",
        "lr_scheduler": "constant",
        **_trainer_settings(work),
        "bf16": work.bf16,
    }
    if work.liger:
        switches = ("liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_fused_linear_cross_entropy")
        config |= {"plugins": ["axolotl.integrations.liger.LigerPlugin"], **dict.fromkeys(switches, True)}
    for unknown in ("lr_scheduler_type", "optim", "report_to", "disable_tqdm"):
        config.pop(unknown)
    return ["-m", "axolotl.cli.train", str(_yaml(folder / "axolotl.yaml", config))]


def _trainer_settings(work: Work) -> dict[str, object]:
    return {
        "output_dir": work.out,
        "learning_rate": work.lr,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch",
        "bf16": False,
        "fp16": False,
        "logging_steps": 10,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": work.seed,
    }


def _yaml(file: Path, config: dict[str, object]) -> Path:
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    return file


_STARTS: dict[str, Callable[[Work, Path], list[str]]] = {
    "hf": _program("hf_trainer.py"),
    "trl": lambda work, folder: _program("trl_dpo.py" if work.kind == "dpo" else "trl_sft.py")(work, folder),
    "torchtune": _torchtune,
    "litgpt": _litgpt,
    "llamafactory": _llamafactory,
    "axolotl": _axolotl,
    "unsloth": _program("unsloth_sft.py"),
}
