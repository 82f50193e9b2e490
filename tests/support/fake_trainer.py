"""Behaves as a script of transformers' Trainer does on the outside, in milliseconds: --output_dir, checkpoint-N, a bar, a resume flag.

--faults KIND:STEP:CALL[,...]: what happens after STEP in the CALL-th start (* for each). Each start is a line of calls.txt.
--no_resume: it has no option to go on. --deaf: it has one and begins anew all the same. --silent: it prints no bar.
--scratch DIR: its checkpoints are links to there.
--after KIND: what happens behind its last step. --tokenize N: a bar of N examples before its first step.
"""

import argparse
import json
import os
import signal
import struct
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default="out")
if "--no_resume" not in sys.argv:
    parser.add_argument("--resume_from_checkpoint")
parser.add_argument("--max_steps", type=int, default=8)
parser.add_argument("--save_steps", type=int, default=2)
parser.add_argument("--epoch_steps", type=int)  # all of them without it
parser.add_argument("--per_device_train_batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--step_s", type=float, default=0.03)
parser.add_argument("--faults", default="")
parser.add_argument("--no_resume", action="store_true")
parser.add_argument("--deaf", action="store_true")
parser.add_argument("--silent", action="store_true")
parser.add_argument("--scratch")
parser.add_argument("--after", default="")
parser.add_argument("--tokenize", type=int, default=0)
with open("calls.txt", "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\n")
given = parser.parse_args()
epoch_steps = given.epoch_steps or given.max_steps
call = len(Path("calls.txt").read_text().splitlines())
out = Path(given.output_dir)


def tensors(file: Path, value: float) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", value, value))


def save(step: int, value: float) -> None:
    folder = out / f"checkpoint-{step}"
    if given.scratch and not folder.exists():
        (Path(given.scratch) / folder.name).mkdir(parents=True, exist_ok=True)
        out.mkdir(exist_ok=True)
        folder.symlink_to(Path(given.scratch).absolute() / folder.name)
    folder.mkdir(parents=True, exist_ok=True)
    tensors(folder / "adapter_model.safetensors", value)
    state = {"global_step": step, "max_steps": given.max_steps, "epoch": step / epoch_steps}
    (folder / "trainer_state.json").write_text(json.dumps(state))


def happen(kind: str, step: int) -> None:
    folder = out / f"checkpoint-{step}"
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "raise":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    elif kind == "oom" and given.per_device_train_batch_size > 4:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.68 GiB")
    elif kind == "serialised" and os.environ.get("CUDA_LAUNCH_BLOCKING") != "1":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    elif kind == "hang":
        time.sleep(600)
    elif kind == "exit":
        sys.exit(7)
    elif kind == "leave":
        sys.exit(0)
    elif kind == "push":
        raise ConnectionError("HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/repos/create")
    elif kind == "torn":
        os.truncate(folder / "adapter_model.safetensors", 30)
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "blind":  # it goes on with them
        tensors(folder / "adapter_model.safetensors", float("nan"))
    elif kind == "nan":
        tensors(folder / "adapter_model.safetensors", float("nan"))
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stateless":
        (folder / "trainer_state.json").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "midsave":
        (out / f"checkpoint-{step + 1}").mkdir()
        os.kill(os.getpid(), signal.SIGKILL)


begin = 0
for rows in range(0, given.tokenize + 1, max(1, given.tokenize // 4)) if given.tokenize else ():
    bar = f"Tokenizing train dataset: {100 * rows // given.tokenize:3d}%|##  | {rows}/{given.tokenize} [00:00<00:00, 812.50 examples/s]"
    print(f"\r{bar}", end="", file=sys.stderr, flush=True)
    time.sleep(0.3)
if getattr(given, "resume_from_checkpoint", None) and not given.deaf:
    begin = json.loads((Path(given.resume_from_checkpoint) / "trainer_state.json").read_text())["global_step"]
beyond = begin >= given.max_steps and begin % epoch_steps  # it asks only after a step whether that was the last
for step in range(begin + 1, given.max_steps + 1 + bool(beyond)):
    time.sleep(given.step_s)
    share = 100 * step // given.max_steps
    if not given.silent:
        print(f"\r {share:3d}%|###   | {step}/{given.max_steps} [00:01<00:02,  3.20it/s]", end="", file=sys.stderr, flush=True)
    if step % given.save_steps == 0:
        save(step, step / 3)
    for fault in filter(None, given.faults.split(",")):
        what, at, which = fault.split(":")
        if step == int(at) and which in ("*", str(call)):
            happen(what, step)
if given.after:
    happen(given.after, given.max_steps)
