"""A loop of accelerate's, as its examples show it: save_state into OUT/step_N, load_state of --resume_from_checkpoint.

--fault KIND:STEP:RANK: before STEP that rank is killed, hangs, or its launcher is sent SIGTERM; once. computed.RANK has each step.
Prints "weights SHA256" at its end, bit for bit.
"""

import argparse
import hashlib
import os
import signal
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default="out")
parser.add_argument("--resume_from_checkpoint")
parser.add_argument("--fault", default="::")
given = parser.parse_args()
kind, at, rank = given.fault.split(":")
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
set_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
begin = 0
if given.resume_from_checkpoint:
    accelerator.load_state(given.resume_from_checkpoint)
    begin = int(given.resume_from_checkpoint.rstrip("/").rpartition("_")[2])
for step in range(begin + 1, 13):
    if kind and int(at) == step and int(rank) == accelerator.process_index and not Path("struck").exists():
        Path("struck").touch()
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "term":
            os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(600)
    optimizer.zero_grad()
    torch.manual_seed(1000 * step + accelerator.process_index)
    loss = model(torch.randn(4, 8)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    with Path(f"computed.{accelerator.process_index}").open("a") as file:
        file.write(f"{step}\n")
    if accelerator.is_main_process:
        print(f"step {step}/12 loss {loss.item():.4f}", flush=True)
    if step % 3 == 0:
        accelerator.save_state(f"{given.output_dir}/step_{step}")
found = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters()))
if accelerator.is_main_process:
    print("weights", found.hexdigest(), flush=True)
accelerator.end_training()
