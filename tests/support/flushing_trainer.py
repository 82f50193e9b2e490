"""A stand-in for a Trainer script that flushes each of its checkpoints; the steps are counted on its output."""

import argparse
import json
import os
import struct
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=Path, required=True)
parser.add_argument("--resume_from_checkpoint", type=Path)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--pause", type=float, default=0.1)
given = parser.parse_args()


def save(step: int) -> None:
    folder = given.output_dir / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    files = {"model.safetensors": struct.pack("<Q", len(header)) + header + struct.pack("<4f", *[float(step)] * 4)}
    files["trainer_state.json"] = json.dumps({"global_step": step, "max_steps": given.steps, "epoch": step / given.steps}).encode()
    for name, data in files.items():
        with (folder / name).open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
    for place in (folder, given.output_dir, given.output_dir.parent):
        descriptor = os.open(place, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


begin = 0
if given.resume_from_checkpoint:
    begin = json.loads((given.resume_from_checkpoint / "trainer_state.json").read_text())["global_step"]
for step in range(begin + 1, given.steps + 1):
    time.sleep(given.pause)
    print(json.dumps({"loss": round(2 / step, 4)}), f"step {step}/{given.steps}", flush=True)
    if step % 3 == 0:
        save(step)
