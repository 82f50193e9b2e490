"""A training of milliseconds that does what plan.json beside it says, and writes the truth down before it prints a word.

truth.jsonl: {start, began} for each start, {step} for each step, counted over all stages, {saved: name, step, whole} for each checkpoint,
{end} where the last step was done. plan.json: as tests/support/drawn_plans.py draws it. Options: --output_dir, --resume_from_checkpoint.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

plan = json.loads(Path("plan.json").read_text())
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default="out")
parser.add_argument("--resume_from_checkpoint")
given = parser.parse_args()
out, truth = Path(given.output_dir), Path("truth.jsonl")
call = truth.read_text().count('"start"') if truth.exists() else 0
STAGES, TOTAL = plan["stages"], sum(plan["stages"])


def note(**row: object) -> None:
    with truth.open("a") as file:
        file.write(json.dumps(row) + "\n")


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)


def save(step: int, local: int, of: int) -> Path:
    """A folder as of a Trainer, or a file as of a loop, whose name tells the step or none."""
    name = {"trainer": f"checkpoint-{local}", "steps": f"step-{local}.pt", "epochs": f"epoch_{local}.pt", "last": "last.pt"}[plan["saves"]]
    place = out / name
    note(saved=name, step=step, whole=True)
    file = place
    if plan["saves"] == "trainer":
        place.mkdir(parents=True, exist_ok=True)
        state = {"global_step": local, "max_steps": of, "epoch": local / of}
        (place / "trainer_state.json").write_text(json.dumps(state))
        file = place / "optimizer.pt"
    out.mkdir(exist_ok=True)
    with zipfile.ZipFile(f"{file}.tmp", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("archive/data/0", str(step))
    Path(f"{file}.tmp").replace(file)
    return file


def step_in(place: Path) -> int:
    with zipfile.ZipFile(place / "optimizer.pt" if place.is_dir() else place) as archive:
        return int(archive.read("archive/data/0"))


def begin() -> int:
    """The step to go on from: of what it was told, of the newest that it finds itself, or 0."""
    if plan["resume"] == "told" and given.resume_from_checkpoint:
        return step_in(Path(given.resume_from_checkpoint))
    if plan["resume"] == "finds" and out.is_dir():
        steps = []
        for entry in out.iterdir():
            try:
                steps.append(step_in(entry))
            except (OSError, zipfile.BadZipFile, KeyError, ValueError):
                continue
        return max(steps, default=0)
    return 0


def show(step: int, local: int, of: int, stage: int) -> None:
    loss, form = round(3 / (step + 1) + 0.1, 4), plan["prints"]
    if form in ("bar", "logged bar"):
        say(f"\r{100 * local // of:3d}%|###   | {local}/{of} [00:01<00:02, 9.20it/s]", end="")
        if form == "logged bar" and not local % plan["each"]:
            say(f"\n{{'loss': {loss}, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': {local / of:.2f}}}")
    elif form == "epochs":
        length = next(n for n in (4, 3, 5, 7, of) if of % n == 0)
        say(f"\rEpoch {(local - 1) // length + 1}/{-(-of // length)}: {(local - 1) % length + 1}/{length} [00:01<00:02, 9.20it/s]", end="")
    elif form == "lightning":  # from epoch 0; the rest of one that it goes on with has no length
        length = next(n for n in (4, 3, 5, 7, of) if of % n == 0)
        epoch, at = (local - 1) // length, (local - 1) % length + 1
        rest = began % length and epoch == began // length
        name = f"Training: |          | {at}/?" if rest else f"Epoch {epoch}: {100 * at // length:3d}%|###   | {at}/{length}"
        say(f"\r{name} [00:01<00:02,  9.20it/s, loss={loss}]", end="")
    elif form != "nothing" and not local % plan["each"]:
        words = {
            "words": f"step {local}/{of} loss {loss}",
            "no total": f"step {local} loss {loss}",
            "no loss": f"Iteration {local} of {of}",
            "dict": f"{{'step': {local}, 'loss': {loss}}}",
        }
        say(words[form])


def beside(step: int) -> None:
    """What it prints that is no step of its own."""
    for what, at in plan["beside"]:
        if step == at and what == "evaluation":
            for n in range(1, 4):
                say(f"\rEvaluating: {33 * n:3d}%|##  | {n}/3 [00:00<00:00, 99.10it/s]", end="")
            say("\n{'eval_loss': 1.5, 'eval_runtime': 0.1, 'epoch': 0.5}")
        elif step == at and what == "unnamed evaluation":
            for n in range(1, 4):
                say(f"\r{33 * n:3d}%|##  | {n}/3 [00:00<00:00, 99.10it/s]", end="")
            say("")
        elif step == at and what == "examples":
            say("\rMap:  50%|##  | 200/400 [00:00<00:00, 812.50 examples/s]\rMap: 100%|####| 400/400 [00:00<00:00, 812.50 examples/s]")
        elif step == at and what == "download":
            say("\rmodel.safetensors:  50%|##  | 1.2G/2.4G [00:01<00:01, 900MB/s]\rmodel.safetensors: 100%|####| 2.4G/2.4G [00:02<0:00]")
        elif step == at and what == "shards":
            say("\rLoading checkpoint shards: 100%|####| 4/4 [00:00<00:00, 9.50it/s]")
        elif step == at and what == "another":
            say(f"[job 7 on gpu03] step {4000 + step}/9000 loss 1.25")
        elif step == at and what == "another's bar":
            say(f"\r[gpu03] {44:3d}%|##  | {4000 + step}/9000 [00:00<00:00, 9.50it/s]")
        elif step == at and what == "table":
            say("| step 100 | 2.1 |\n| step 200 | 1.9 |\n| step 300 | 1.7 |")


def happen(kind: str, step: int, newest: Path | None) -> None:
    if kind == "torn" and newest is not None:
        os.truncate(newest, newest.stat().st_size // 2)
        note(torn=newest.name if newest.suffix == ".pt" and newest.name != "optimizer.pt" else newest.parent.name)
    if kind in ("kill", "torn"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "raise":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    elif kind == "leave":
        sys.exit(0)
    elif kind == "exit":
        sys.exit(7)
    elif kind == "hang":
        time.sleep(600)
    elif kind == "push":
        raise ConnectionError("HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/repos/create")


began, done, newest = begin(), 0, None
note(start=call + 1, began=began, told=given.resume_from_checkpoint)
if plan["child"] == "helper":
    subprocess.Popen(["sleep", "60"])
elif plan["child"] == "monitor":
    subprocess.Popen(["sh", "-c", "while true; do echo gpu memory in use 41 percent; sleep 0.3; done"])
beside(0)
for stage, of in enumerate(STAGES):
    for local in range(1, of + 1):
        done += 1
        if done <= began:
            continue
        time.sleep(plan["step_s"])
        note(step=done, call=call + 1)
        show(done, local, of, stage)
        if plan["save_steps"] and (not local % plan["save_steps"] or local == of):
            newest = save(done, local, of)
        beside(done)
        for kind, at, which in plan["faults"]:
            if done == at and which == call + 1:
                happen(kind, done, newest)
note(end=True, call=call + 1)
say("\ndone")
if plan["after"]:
    happen(plan["after"], done, newest)
