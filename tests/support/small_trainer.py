"""A real script of transformers' Trainer on a tiny model with LoRA and dropout, that fails as it is told.

Prints "weights SHA256" at its end: of the adapter, bit for bit. --faults KIND:STEP:CALL[,...] as in fake_trainer.py.
hang1, kill1: rank 1 alone.
"""

import hashlib
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

TARGETS = ["q_proj", "v_proj"]


@dataclass
class Ours:
    faults: str = ""
    obey: bool = True  # resume_from_checkpoint is passed on
    call: int = 1


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(at))
        return {"input_ids": tokens, "labels": tokens.clone()}


class Faulty(Trainer):
    ours = Ours()

    def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
        if due(self.ours, "raise", self.state.global_step + 1):
            raise RuntimeError("an error of the program's own")
        loss = super().training_step(model, inputs, *more)
        if due(self.ours, "nan", self.state.global_step + 1):
            for one in model.parameters():
                if one.grad is not None:
                    one.grad.fill_(float("nan"))
        return loss

    def log(self, logs: Any, *more: Any, **keywords: Any) -> None:
        if due(self.ours, "log", self.state.global_step):
            raise RuntimeError("cut while a row is written")
        super().log(logs, *more, **keywords)

    def evaluation_loop(self, *arguments: Any, **keywords: Any) -> Any:
        found = super().evaluation_loop(*arguments, **keywords)
        torch.rand(3)  # as the shuffling of a data loader
        last = not isinstance(self.eval_dataset, dict) or keywords.get("metric_key_prefix") == f"eval_{list(self.eval_dataset)[-1]}"
        if last and due(self.ours, "cut", self.state.global_step):
            raise RuntimeError("cut in the evaluation")
        return found

    def _load_from_checkpoint(self, *arguments: Any, **keywords: Any) -> None:
        super()._load_from_checkpoint(*arguments, **keywords)
        if "forget" in self.ours.faults:  # what huggingface/accelerate#4206 does: most of the adapter is back at its start
            for name, one in list(self.model.named_parameters())[3:]:
                if "lora_B" in name:
                    one.data.zero_()


class Faults(TrainerCallback):
    def __init__(self, ours: Ours) -> None:
        self.ours = ours

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        step = state.global_step + 1
        if due(self.ours, "kill", step) or (os.environ.get("RANK") == "1" and due(self.ours, "kill1", step)):
            os.kill(os.getpid(), signal.SIGKILL)
        if due(self.ours, "hang", step) or (os.environ.get("RANK") == "1" and due(self.ours, "hang1", step)):
            time.sleep(600)
        if due(self.ours, "term", step):
            os.kill(os.getpid(), signal.SIGTERM)
        if due(self.ours, "exit0", step):
            os._exit(0)


class Asks(TrainerCallback):
    """Asks for an evaluation after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        control.should_evaluate = state.global_step == self.step
        return control


def due(ours: Ours, kind: str, step: int) -> bool:
    told = [fault.split(":") for fault in ours.faults.split(",") if fault.count(":") == 2]
    return any(what == kind and int(at) == step and which in ("*", str(ours.call)) for what, at, which in told)


def build(arguments: TrainingArguments, ours: Ours, held_out: Any = None) -> Trainer:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    lora = LoraConfig(r=4, lora_dropout=0.1, target_modules=TARGETS, task_type="CAUSAL_LM")
    model = get_peft_model(LlamaForCausalLM(config), lora)
    trainer = Faulty(model=model, args=arguments, train_dataset=Rows(), eval_dataset=held_out, callbacks=[Faults(ours)])
    trainer.ours = ours
    return trainer


def digest(model: torch.nn.Module) -> str:
    """Of the trained weights, bit for bit."""
    found = hashlib.sha256()
    for _, one in sorted(model.named_parameters(), key=lambda named: named[0]):
        if one.requires_grad:
            found.update(one.detach().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    arguments, ours = HfArgumentParser((TrainingArguments, Ours)).parse_args_into_dataclasses()
    with open("calls.txt", "a") as calls:
        calls.write(" ".join(sys.argv[1:]) + "\n")
    ours.call = -(-len(Path("calls.txt").read_text().splitlines()) // int(os.environ.get("WORLD_SIZE", 1)))
    trainer = build(arguments, ours, Rows() if arguments.eval_strategy != "no" else None)
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint if ours.obey else None)
    print("weights", digest(trainer.model))


if __name__ == "__main__":
    main()
