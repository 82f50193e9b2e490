"""What becomes of other people's training commands under faults: alone, under torchrun, under `holdfast run`, and with the callback.

    benchmarks/engine/setup_peers.sh PEERS hf axolotl llamafactory
    python benchmarks/foreign/matrix.py FOLDER --peers PEERS [--only trainer trl-sft] [--faults kill nan] [--ways alone run]
    python benchmarks/foreign/matrix.py FOLDER --table

Each case is one real command in its own environment, with one fault from within (inside/sitecustomize.py), and a row of
FOLDER/cases.jsonl. A case that has a row is not run again; one that ended before its fault came (a busy machine) has none. The
commands train a model of 0.1M parameters, LoRA with dropout, 16 steps of at least a second (they wait), with a checkpoint every 5.
`disk` fills the small disk of the output folder (a tmpfs: needs root) and makes room again when the command has ended; where it then
has to be started again by hand, the row says so. A case that has not ended after --limit-s is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
STEPS, SAVE = 16, 5
FAULTS = dict.fromkeys(("kill", "nan", "hang", "term", "disk", "memory", "worker"), 9)  # before which step
FAULTS |= dict.fromkeys(("tear-weights", "tear-optimizer", "tear-state"), 13)
WAYS = ("alone", "torchrun", "run", "callback")
TRL = ("trl-sft", "trl-dpo", "trl-kto", "trl-reward", "trl-grpo")
OTHERS = ("litgpt", "lightning", "torchtune")  # no Trainer of transformers' is in them: struck at the optimizer's steps
PEERS = ("trainer", *TRL, "axolotl", "llama-factory", *OTHERS)
VENV = dict.fromkeys(("trainer", *TRL), "hf") | {"axolotl": "axolotl", "llama-factory": "llamafactory"}
VENV |= {"litgpt": "litgpt", "lightning": "litgpt", "torchtune": "torchtune"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--only", nargs="+", default=PEERS, choices=PEERS)
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=FAULTS)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--table", action="store_true", help="print what is there as a Markdown table")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not arguments.table:
        make_assets(folder)
        for peer in arguments.only:
            for fault in ["none", *arguments.faults]:
                for way in ("alone",) if fault == "none" else arguments.ways:
                    given = (fault != "worker" or peer == "trainer") and not (peer in OTHERS and way in ("torchrun", "callback"))
                    if given and (peer, fault, way) not in done(folder):
                        row = case(folder, arguments.peers.resolve(), peer, fault, way, arguments.limit_s)
                        if fault != "none" and not row["struck"]:
                            print(f"{peer}, {fault}, {way}: ended before its fault came, so it is no row", flush=True)
                            continue
                        with (folder / "cases.jsonl").open("a") as file:
                            file.write(json.dumps(row) + "\n")
                        print(json.dumps(row), flush=True)
    table(folder)


def done(folder: Path) -> dict[tuple[str, str, str], dict]:
    file = folder / "cases.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {(row["peer"], row["fault"], row["way"]): row for row in rows}


def make_assets(folder: Path) -> None:
    if not (folder / "model").exists():
        sys.path.insert(0, str(HERE.parent / "engine"))
        from make_models import TINY, make_model

        make_model(folder / "model", "test", TINY)
    for name in ("sft", "dpo", "kto", "reward", "grpo", "lf"):
        (folder / name).mkdir(exist_ok=True)
    sft, dpo, kto = [], [], []
    for at in range(96):
        question = {"role": "user", "content": f"Count from {at} by {at % 7 + 1}."}
        right, wrong = (" ".join(str(at + n * by) for n in range(6)) for by in (at % 7 + 1, 11))
        answer = {"role": "assistant", "content": right}
        sft.append({"messages": [question, answer]})
        dpo.append({"prompt": [question], "chosen": [answer], "rejected": [{"role": "assistant", "content": wrong}]})
        kto.append({"prompt": [question], "completion": [answer], "label": at % 2 == 0})
    asked = [{"prompt": row["prompt"]} for row in dpo]
    for name, rows in {"sft": sft, "dpo": dpo, "kto": kto, "reward": dpo, "grpo": asked}.items():
        file = folder / name / "train.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    told = {"file_name": str(folder / "sft/train.jsonl"), "formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": tags}
    (folder / "lf/dataset_info.json").write_text(json.dumps({"counts": told}))


def command(folder: Path, peers: Path, peer: str, out: Path, way: str, workers: int) -> list[str]:
    """What a user of this trainer would type."""
    bin_ = peers / VENV[peer] / "bin"
    python, model = str(bin_ / "python"), str(folder / "model")
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "--max-restarts", "3"]
    told = {
        "output_dir": out, "max_steps": STEPS, "save_steps": SAVE, "per_device_train_batch_size": 2, "learning_rate": 0.01, "seed": 3,
        "report_to": "none", "use_cpu": True, "logging_steps": 5, "dataloader_num_workers": workers, "dataloader_pin_memory": False,
    }  # fmt: skip
    options = [word for name, value in told.items() for word in (f"--{name}", str(value))]
    start = torchrun if way == "torchrun" else [python]
    if peer == "trainer":
        return [*start, str(HERE / "trainer_script.py"), "--model", model, "--rows", str(folder / "sft/train.jsonl"), *options]
    if peer.startswith("trl"):
        kind = peer.removeprefix("trl-")
        lora = ["--use_peft", "--lora_r", "4", "--lora_dropout", "0.1", "--lora_target_modules", "q_proj", "v_proj", "--bf16", "False"]
        words = ["--model_name_or_path", model, "--dataset_name", str(folder / kind), *lora, *options, "--gradient_checkpointing", "False"]
        words += {
            "grpo": ["--reward_funcs", "matrix_reward.digits", "--num_generations", "2", "--max_completion_length", "12"],
            "reward": ["--lora_task_type", "SEQ_CLS"],
        }.get(kind, [])
        return [*torchrun, "-m", f"trl.scripts.{kind}", *words] if way == "torchrun" else [str(bin_ / "trl"), kind, *words]
    config = out.parent / "config.yml"
    if peer in OTHERS:
        return other(folder, python, peer, out, config)
    if peer == "axolotl":
        config.write_text(yaml.safe_dump(axolotl(folder, out)))
        return [*start, "-m", "axolotl.cli.train", str(config)]
    lora = {"finetuning_type": "lora", "lora_rank": 4, "lora_dropout": 0.1, "lora_target": "all", "disable_gradient_checkpointing": True}
    rows = {"stage": "sft", "do_train": True, "dataset": "counts", "dataset_dir": str(folder / "lf")}
    rows |= {"template": "chatml", "cutoff_len": 64}
    told = {name: str(value) if isinstance(value, Path) else value for name, value in told.items()}
    config.write_text(yaml.safe_dump({"model_name_or_path": model, "save_only_model": False, "bf16": False} | lora | rows | told))
    launcher = str(HERE.parent / "engine/peers/llamafactory_start.py")
    return [*torchrun, launcher, str(config)] if way == "torchrun" else [str(bin_ / "llamafactory-cli"), "train", str(config)]


def axolotl(folder: Path, out: Path) -> dict:
    rows = {"path": str(folder / "sft/train.jsonl"), "ds_type": "json", "type": "chat_template", "field_messages": "messages"}
    return {
        "base_model": str(folder / "model"), "tokenizer_type": "AutoTokenizer", "chat_template": "chatml", "datasets": [rows],
        "dataset_prepared_path": str(folder / "axolotl-rows"), "val_set_size": 0.0, "output_dir": str(out), "adapter": "lora", "lora_r": 4,
        "lora_alpha": 8, "lora_dropout": 0.1, "lora_target_linear": True, "sequence_len": 64, "sample_packing": False,
        "gradient_accumulation_steps": 1, "micro_batch_size": 2, "max_steps": STEPS, "save_steps": SAVE, "optimizer": "adamw_torch",
        "lr_scheduler": "linear", "learning_rate": 0.01, "bf16": False, "fp16": False, "tf32": False, "gradient_checkpointing": False,
        "flash_attention": False, "sdp_attention": True, "logging_steps": 5, "seed": 3, "use_wandb": False, "lora_mlp_kernel": False,
        "lora_qkv_kernel": False, "lora_o_kernel": False, "special_tokens": {"pad_token": "<|pad|>", "eos_token": "<|im_end|>"},
    }  # fmt: skip


def other(folder: Path, python: str, peer: str, out: Path, config: Path) -> list[str]:
    """What a user of LitGPT, Lightning or torchtune would type; its model and rows are made where they are not there."""
    if peer == "lightning":
        return [python, str(HERE / "lightning_script.py"), str(out), str(STEPS), str(SAVE)]
    rows, model = folder / "alpaca.json", folder / "litgpt-model"
    told = [row["prompt"][0]["content"] for row in map(json.loads, (folder / "grpo/train.jsonl").read_text().splitlines())]
    rows.write_text(json.dumps([{"instruction": text, "input": "", "output": text[::-1]} for text in told]))
    if peer == "torchtune":
        sys.path.insert(0, str(HERE.parent / "engine"))
        from contenders import Work, torchtune_config

        work = Work(model=str(folder / "model"), rows=str(rows), out=str(out), steps=STEPS // 4, max_tokens=64, rank=4, alpha=8, pad=0)
        config.write_text(yaml.safe_dump(torchtune_config(work) | {"epochs": 4, "shuffle": True, "log_every_n_steps": 1}))
        return [str(Path(python).with_name("tune")), "run", "lora_finetune_single_device", "--config", str(config)]
    if not model.exists():
        subprocess.run([python, str(HERE.parent / "engine/peers/litgpt_model.py"), str(folder / "model"), str(model)], check=True)
    words = [
        "--precision",
        "32-true",
        "--train.global_batch_size",
        "2",
        "--train.micro_batch_size",
        "2",
        "--train.save_interval",
        str(SAVE),
    ]
    words += ["--eval.interval", "1000", "--eval.max_iters", "1", "--eval.final_validation", "false", "--out_dir", str(out), "--seed", "3"]
    start = str(Path(python).with_name("litgpt"))
    words += ["--data", "JSON", "--data.json_path", str(rows), "--data.val_split_fraction", "0.03", "--data.num_workers", "0"]
    words += ["--train.lr_warmup_steps", "1", "--train.max_steps", str(STEPS), "--train.max_seq_length", "64", "--lora_r", "4"]
    return [start, "finetune_lora", str(model), *words]


def case(folder: Path, peers: Path, peer: str, fault: str, way: str, limit_s: float) -> dict:
    """Run one case; what came of it."""
    place = folder / "cases" / f"{peer}-{fault}-{way}"
    subprocess.run(["rm", "-rf", str(place)], check=True)
    out = place / "out"
    out.mkdir(parents=True)
    small_disk = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(out)] if fault == "disk" else ["true"]
    subprocess.run(small_disk, check=True)
    words = command(folder, peers, peer, out, way, 1 if fault == "worker" else 0)
    if way in ("run", "callback"):
        options = ["--run", str(place / "run"), "--json", "--hang-s", "30", *(["--callback"] if way == "callback" else [])]
        words = [sys.executable, "-m", "holdfast", "run", *options, "--", *words]
    inside = [HERE / "inside", *([HERE.parent / "engine/peers"] if peer in OTHERS else [])]
    environment = os.environ | {
        "FOREIGN_CASE": str(place), "FOREIGN_FAULT": f"{fault}:{FAULTS[fault]}" if fault in FAULTS else "", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([*map(str, inside), os.environ.get("PYTHONPATH", "")]),
        "FOREIGN_SOURCE": str(SOURCE), "HF_HUB_OFFLINE": "1", "FOREIGN_LAST": str(STEPS) if peer in OTHERS else "",
        "HF_HOME": str(folder / "hf-home"), "AXOLOTL_DO_NOT_TRACK": "1", "DISABLE_VERSION_CHECK": "1", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    began = time.monotonic()
    ended = carry_out(words, place, environment, limit_s)
    whole = (place / "end.json").exists()
    by_itself = "yes" if ended == 0 and whole else "never" if ended is None else f"no: {ended}"
    by_itself += " before its last step" if ended == 0 and not whole else ""
    if fault == "disk":
        (out / "somebody-elses").unlink(missing_ok=True)
        if ended not in (0, None):
            again = carry_out(words, place, environment, limit_s)
            by_itself += "; with room again, the same command: " + ("yes" if again == 0 else f"no: {again}")
    row = {"peer": peer, "fault": fault, "way": way, "ended": by_itself, "seconds": round(time.monotonic() - began, 1), **measured(place)}
    if fault == "disk":
        subprocess.run(["umount", "-l", str(out)], check=True)
    return row | {"load": round(os.getloadavg()[0], 1), "struck": (place / "struck").exists()}


def carry_out(words: list[str], place: Path, environment: dict[str, str], limit_s: float) -> int | None:
    """Its exit code; None where it had to be ended."""
    with (place / "output.log").open("ab") as log:
        options = {"stdin": subprocess.DEVNULL, "env": environment, "cwd": place, "start_new_session": True}
        child = subprocess.Popen(words, stdout=log, stderr=log, **options)
        try:
            return child.wait(limit_s)
        except subprocess.TimeoutExpired:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(child.pid, number)
                    child.wait(90)
            for line in (place / "steps.jsonl").read_text().splitlines() if (place / "steps.jsonl").exists() else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(json.loads(line)["pid"], signal.SIGKILL)
            return None


def measured(place: Path) -> dict:
    file, end = place / "steps.jsonl", place / "end.json"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    told = json.loads(end.read_text()) if end.exists() else {}
    twice = len(rows) - len({row["step"] for row in rows})
    return {"starts": len({row["pid"] for row in rows}), "twice": twice, "steps": told.get("step"), **told, "departs": _departs(place)}


def _departs(place: Path) -> dict | None:
    """Where it first departs from the undisturbed command, by its own fingerprints; None: nowhere, or nobody looked."""
    sys.path.insert(0, str(SOURCE))
    from holdfast.base.files import read_lines
    from holdfast.run.fingerprints import WORDS, Look, compare_fingerprints

    whole = place.parent / _undisturbed(place.name)
    looks = [
        [Look(1, row["step"], False, {key: row[key] for key in WORDS if key in row}) for row in read_lines(one / "fingerprints.jsonl")]
        for one in (place, whole)
    ]
    return compare_fingerprints(*looks)["departs"]


def _undisturbed(name: str) -> str:
    peer = next(one for one in sorted(PEERS, key=len, reverse=True) if name.startswith(f"{one}-"))
    return f"{peer}-none-alone"


def table(folder: Path) -> None:
    """A row for each command and fault: how it ended, steps computed twice, and what its weights are."""
    rows = done(folder)
    print("\n| command | fault | " + " | ".join(WAYS) + " |\n" + "|---" * (2 + len(WAYS)) + "|")
    for peer, fault in itertools.product(PEERS, FAULTS):
        cells = [_told(rows.get((peer, fault, way)), rows.get((peer, "none", "alone"), {})) for way in WAYS]
        if any(cells):
            print(f"| {peer} | {fault} | " + " | ".join(cells) + " |")


def _told(row: dict[str, Any] | None, undisturbed: dict[str, Any]) -> str:
    if row is None:
        return ""
    ended = row["ended"]
    if ended == "never":
        return "never ends"
    if ended.startswith("no:") and "room" not in ended:
        return f"dies ({ended.removeprefix('no: ')})"
    says = "ends" if ended == "yes" else "stops; goes on with room again"
    says += f", {row['twice']} twice" if row["starts"] > 1 else ""
    if row.get("finite") is False:
        return f"{says}, **NaN in the weights**"
    if row.get("weights") and row["weights"] == undisturbed.get("weights"):
        return f"{says}, same bits"
    if row.get("departs"):
        return f"{says}, departs at step {row['departs']['step']} ({row['departs']['what']})"
    return f"{says}, finite" if row.get("finite") else says


if __name__ == "__main__":
    main()
