"""Run a trainer's program and write down each optimizer step it takes. Changes nothing of what it computes.

    python probe.py STEPS.jsonl PAD_TOKEN (-m MODULE | PROGRAM.py) ARGUMENTS...

A line per step: time, tokens and positions that went through the embedding for a gradient so far, and the sum of what `backward` was
called on. Tokens are positions without the runs of PAD_TOKEN at both ends of a row. Sums stay on the device until the step is done, so
that a GPU is waited for once a step; its most allocated bytes are in peak.json at the end. Standard library and torch only: it runs in the
environment of whoever is measured.
"""

import atexit
import json
import os
import runpy
import sys
import time
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

OWNER = os.getpid()


class Record:
    def __init__(self, file, pad):
        self.file, self.pad = open(file, "w"), pad  # noqa: SIM115  (open for the life of the process)
        self.tokens = self.positions = self.step = 0
        self.loss, self.divisor = 0.0, 1.0

    def embedded(self, ids):
        real = ids != self.pad
        some = real.any(-1)
        first, last = real.int().argmax(-1), ids.shape[-1] - 1 - real.int().flip(-1).argmax(-1)
        self.tokens = self.tokens + ((last - first + 1) * some).sum()
        self.positions += ids.numel()

    def stepped(self, *_):
        if os.getpid() != OWNER:
            return
        self.step += 1
        self.tokens, self.loss = int(self.tokens), float(self.loss)
        row = {"step": self.step, "time": time.time(), "tokens": self.tokens, "positions": self.positions, "loss": self.loss / self.divisor}
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        self.loss, self.divisor = 0.0, 1.0


def attach(record):
    embedding, backward = torch.nn.functional.embedding, torch.Tensor.backward

    def counted_embedding(ids, *rest, **named):
        if torch.is_grad_enabled():  # a preference's reference is computed without, and trains no token
            record.embedded(ids.detach())
        return embedding(ids, *rest, **named)

    def noted_backward(tensor, *rest, **named):
        if tensor.numel() == 1:
            record.loss = record.loss + tensor.detach().double().reshape(())
        return backward(tensor, *rest, **named)

    torch.nn.functional.embedding, torch.Tensor.backward = counted_embedding, noted_backward
    register_optimizer_step_post_hook(record.stepped)


def write_peak(file):
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        Path(file).with_name("peak.json").write_text(json.dumps({"bytes": torch.cuda.max_memory_allocated()}))


def main():
    record = Record(sys.argv[1], int(sys.argv[2]))
    attach(record)
    atexit.register(write_peak, Path(sys.argv[1]).absolute())
    sys.modules["probe"] = sys.modules["__main__"]
    globals()["RECORD"] = record  # a program whose loss is divided after backward sets RECORD.divisor
    if sys.argv[3] == "-m":
        sys.argv = sys.argv[4:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[3:]
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
