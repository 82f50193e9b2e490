"""The engine on a GPU: tokens a second, peak bytes of the device and share of the measured matrix rate, beside other trainers.

    python benchmarks/gpu/run.py --out FOLDER [--sizes qwen0.5b qwen7b] [--kind lora|qlora] [--only CONTENDER ...] [--batch ROWS]
        [--steps N] [--rounds N] [--peer NAME=PYTHON ...] [--smoke]

The environment of this python holds holdfast, and those of trl, axolotl, torchtune and unsloth that are to be measured; one that lives
elsewhere is given as --peer axolotl=/venv/bin/python (trl as hf=...). Who is absent is told and left out; liger-kernel has to be there
where Liger is to be measured. All train the same rows in the same order with the same LoRA in bf16, dropout 0; `--kind qlora` on
weights in nf4. Models (random weights, bf16) and rows are made in FOLDER. Each size adds its table to FOLDER/tables.md as it is
done, so what ran before a cut-off is kept.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

ENGINE = Path(__file__).parents[1] / "engine"
sys.path.insert(0, str(ENGINE))

import contenders  # noqa: E402
from made_rows import Writer  # noqa: E402
from race import Race, add_arguments, open_race, versions  # noqa: E402
from speed import run_rounds  # noqa: E402
from work import Work, pad_token  # noqa: E402

from tables import Rounds, add_to, median, ratio, table  # noqa: E402

VARIANTS = {
    "holdfast-without-liger": ["train.liger=false"],
    "holdfast-dropout": ["adapter.dropout=0.05"],
    "holdfast-deterministic": ["train.deterministic=true"],
}
MODULES = {"hf": "trl", "axolotl": "axolotl", "torchtune": "torchtune", "unsloth": "unsloth"}  # by the environment's name
LENGTHS = (64, 128, 192, 256, 384, 512, 1024, 2048)  # tokens of a row, with the weights below
WEIGHTS = (4, 8, 8, 8, 6, 4, 2, 1)
COLUMNS = (
    "contender",
    "tokens/s",
    "holdfast is x",
    "peak GB of the device",
    "of the matrix rate",
    "tokens a step",
    "first step s",
    "whole run s",
)
_RATE = """
import json, sys, time, torch
size, times = int(sys.argv[1]), 10
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
for _ in range(3): a @ b
wait(); began = time.perf_counter()
for _ in range(times): a @ b
wait()
name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
print(json.dumps({"device": name, "flops": times * 2 * size**3 / (time.perf_counter() - began)}))
"""


def matrix_rate(size: int) -> tuple[str, float]:
    """The device's name, and the operations a second of square products in bf16, in a process of its own."""
    answer = subprocess.run([sys.executable, "-c", _RATE, str(size)], check=True, capture_output=True, text=True).stdout
    found = json.loads(answer.splitlines()[-1])
    return found["device"], found["flops"]


def work_on(size: str, out: Path, steps: int, batch: int, kind: str) -> Work:
    """A model of this size and rows for it, made where they are not there yet."""
    model, rows = out / "models" / size, out / f"rows-{size}-{batch}-{steps}.jsonl"
    if not (model / "made").exists():
        command = [sys.executable, str(ENGINE / "make_models.py"), str(model), "--size", size, "--stored", "bfloat16"]
        subprocess.run(command, check=True)
        (model / "made").touch()
    chance = random.Random(0)
    Writer(model).write(rows, chance.choices(LENGTHS, WEIGHTS, k=batch * (steps + 4)))
    device = "cuda" if shutil.which("nvidia-smi") or Path("/dev/kfd").exists() else "cpu"
    return Work(str(model), str(rows), "", steps=steps, batch=batch, max_tokens=2048, pad=pad_token(model), device=device, kind=kind)


def peers_here(given: list[str]) -> list[str]:
    """NAME=PYTHON of the peers that were given, and of those this python can import; the others are told."""
    known = {entry.partition("=")[0] for entry in given}
    here = [name for name, module in MODULES.items() if name not in known and importlib.util.find_spec(module)]
    absent = [module for name, module in MODULES.items() if name not in (*known, *here)]
    if absent:
        print(f"not installed, so not measured: {', '.join(absent)}", flush=True)
    return [*given, *(f"{name}={sys.executable}" for name in here)]


def operations(work: Work) -> float:
    """Of a token that is trained: the frozen matrices forward and backward (no gradients of their own), the output layer at labels.

    Attention and adapters are left out, so the share of the matrix rate is a little too low.
    """
    config = json.loads((Path(work.model) / "config.json").read_text())
    hidden, kv = config["hidden_size"], config["hidden_size"] * config["num_key_value_heads"] // config["num_attention_heads"]
    layer = hidden * (2 * hidden + 2 * kv + 3 * config["intermediate_size"])
    labels = 0.4  # as made_rows.py makes them
    return 4.0 * (config["num_hidden_layers"] * layer + labels * config["vocab_size"] * hidden)


def peak_bytes(race: Race, name: str) -> float | None:
    """The most memory of the device that a contender's newest run held."""
    folder = max((path for path in race.folder.iterdir() if path.name.partition("-")[2] == name), key=lambda path: path.name)
    if name.startswith("holdfast"):
        steps = (folder / "run/steps.jsonl").read_text().splitlines() if (folder / "run/steps.jsonl").exists() else []
        return max((json.loads(step)["peak_bytes"] for step in steps), default=None)
    file = folder / "peak.json"
    return json.loads(file.read_text())["bytes"] if file.exists() else None


def rows_of(race: Race, results: Rounds, work: Work, rate: float) -> list[list[object]]:
    rows = []
    for name, rounds in results.items():
        speed, peak = median([result.per_second for result in rounds]), peak_bytes(race, name)
        rows.append(
            [
                name if speed else f"{name}: failed (exit code {rounds[0].code})",
                speed,
                ratio(results, "holdfast", name, lambda result: result.per_second),
                peak / 1e9 if peak else None,
                f"{speed * operations(work) / rate:.0%}" if speed else None,
                median([result.tokens / result.steps for result in rounds if result.steps]),
                median([result.first_step_s for result in rounds]),
                median([result.total_s for result in rounds]),
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["qwen0.5b", "qwen7b"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16, help="rows of a step")
    parser.add_argument("--kind", choices=["lora", "qlora"], default="lora")
    parser.add_argument("--only", nargs="+", metavar="CONTENDER", help="these beside holdfast (default: all that are there)")
    add_arguments(parser)
    given = parser.parse_args()
    if given.smoke:
        given.sizes, given.steps = ["test"], 6
    given.peer = peers_here(given.peer)
    device, rate = matrix_rate(256 if given.smoke else 8192)
    warmup = 2 if given.smoke else 8
    for size in given.sizes:
        race = open_race(given, warmup)
        liger = importlib.util.find_spec("liger_kernel") is not None
        peers = [name for name in contenders.ON_GPU if race.has(name) and (liger or "liger" not in name)]
        peers = [name for name in peers if given.only is None or name in given.only]
        variants = [name for name in VARIANTS if given.only is None or name in given.only]
        names = ["holdfast", *peers, *variants]
        work = work_on(size, given.out, given.steps, given.batch, given.kind)
        results = run_rounds(race, work, names, given.rounds, VARIANTS)
        text = table(COLUMNS, rows_of(race, results, work, rate))
        told = f"{device}: {rate / 1e12:.3g} TFLOP/s in square products of bf16; "
        told += f"{given.steps} steps of {work.batch} rows, the first {warmup} left out."
        add_to(given.out / "tables.md", f"{size} on a GPU, {given.kind}", f"{told}\n\n{text}\n\n{versions(race, ['holdfast', *peers])}")


if __name__ == "__main__":
    main()
