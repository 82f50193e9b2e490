"""A script of TRL's GRPO on a tiny model with LoRA and dropout: MODEL OUT.

Killed before step 4 and before step 7, once each, where the folder kills/ is there.

Prints "weights SHA256" at its end: of the adapter, bit for bit.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

sys.path.insert(0, str(Path(__file__).parent))
from small_trainer import digest


class Killed(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        struck = Path("kills", str(state.global_step + 1))
        if state.global_step + 1 in (4, 7) and struck.parent.is_dir() and not struck.exists():
            struck.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def kinds(completions: list[str], **more: Any) -> list[float]:
    """How many different letters there are, as a share: seldom the same of two answers, so that each step learns."""
    return [len(set(text)) / (1 + len(text)) + len(text) / 100 for text in completions]


torch.set_num_threads(1)
options = GRPOConfig(
    sys.argv[2], max_steps=8, save_steps=5, per_device_train_batch_size=2, num_generations=2, max_completion_length=6, learning_rate=1e-2,
    seed=3, report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, logging_steps=1,
    model_init_kwargs={"dtype": "float32"},
)  # fmt: skip
trainer = GRPOTrainer(
    sys.argv[1],
    reward_funcs=kinds,
    args=options,
    train_dataset=Dataset.from_list([{"prompt": f"Count from {at} by {at % 7 + 1}: "} for at in range(16)]),
    peft_config=LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]),
    callbacks=[Killed()],
)
trainer.train()
print("weights", digest(trainer.model))
