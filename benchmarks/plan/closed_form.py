"""How far the closed form, by which a run with room to spare is planned, is from the traced step of the same choice.

    python benchmarks/plan/closed_form.py CONFIGS --seed N [--draws 60] [--out FILE.jsonl]
    python benchmarks/plan/closed_form.py --table FILE.jsonl ...

CONFIGS: a folder of model folders, whose config.json is enough. Model, adapter, optimizer, frozen weights, length and device are drawn;
the closed form chooses tokens and layers as for a run, and the step of that choice is traced. What matters is the largest of traced /
closed: where the closed form needs less than the usable memory over that, what it is off by cannot make a run too large.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from pathlib import Path
from typing import Any

from holdfast.base.errors import Stop
from holdfast.book.graphics_cards import named_card
from holdfast.book.knowledge import has_fused_attention
from holdfast.config.config import Config
from holdfast.machine.read import read_machine
from holdfast.planning.plan import make_plan
from holdfast.planning.planning import RowLengths, planner, with_card

ADAPTERS = ("lora", "lora", "lora", "rslora", "dora", "ia3", "prompt", "full", "layers")
OPTIMIZERS = ("adamw", "adamw", "adamw8bit", "schedule_free", "lion", "sgd")
DEVICES = ("cpu", "RTX 4090", "MI210", "H100 80GB", "V100 32GB")
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("configs", type=Path, nargs="?")
    arguments.add_argument("--seed", type=int)
    arguments.add_argument("--draws", type=int, default=60)
    arguments.add_argument("--out", type=Path, default=Path("closed.jsonl"))
    arguments.add_argument("--table", type=Path, nargs="*")
    asked = arguments.parse_args()
    if asked.table:
        print(table([json.loads(line) for file in asked.table for line in file.read_text().splitlines()]))
        return
    here = read_machine(Path.cwd(), ask_torch=True)
    models = sorted(folder for folder in asked.configs.iterdir() if (folder / "config.json").is_file())
    chance = random.Random(asked.seed)
    for number in range(asked.draws):
        row = {"seed": asked.seed, "number": number} | _compared(_drawn(chance, models), here)
        with asked.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def _drawn(chance: random.Random, models: list[Path]) -> dict[str, Any]:
    model, kind, device = chance.choice(models), chance.choice(ADAPTERS), chance.choice(DEVICES)
    adapter: dict[str, Any] = {"type": kind} | ({"layers": 2} if kind == "layers" else {})
    if kind in ("lora", "rslora", "dora"):
        adapter |= {"r": chance.choice((8, 16, 64)), "alpha": 32, "dropout": chance.choice((0.0, 0.1))}
    longest = chance.choice(LENGTHS)
    frozen = "auto" if kind in ("full", "layers") else chance.choice(("auto", "auto", "half", "nf4", "int8"))
    train = {"optimizer": chance.choice(OPTIMIZERS), "frozen": frozen, "max_tokens": longest}
    tree = {"model": str(model), "data": {"files": "x"}, "adapter": adapter, "train": train}
    return {"device": device, "tree": tree, "longest": longest, "batch": chance.choice((1, 4, 32))}


def _compared(drawn: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    """{model, device, kind, closed, traced (bytes), failed}, and how much memory the closed form thinks there is."""
    machine = here if drawn["device"] == "cpu" else with_card(here, named_card(drawn["device"]))
    config = Config.model_validate(drawn["tree"])
    about = {
        "model": Path(config.model).name,
        "device": drawn["device"],
        "adapter": drawn["tree"]["adapter"],
        "train": drawn["tree"]["train"],
    }
    longest = drawn["longest"]
    try:
        with planner(config, machine, RowLengths(longest, longest * drawn["batch"])) as work:
            lengths = {"max": longest, "mean": longest, "rows": 1000, "step": longest * drawn["batch"]}
            plan = make_plan(config, work.model, machine, lengths, has_fused_attention(machine))
            choice = {"micro_batch_tokens": plan.micro_batch_tokens, "checkpointed_layers": plan.checkpointed_layers}
            work.config = config.model_copy(update={"train": config.train.model_copy(update=choice)})
            traced = work.chosen().plan
    except Stop as stop:
        return about | {"failed": stop.message}
    kinds = {kind: [size, getattr(traced.bytes, kind)] for kind, size in plan.bytes.model_dump().items()}
    return about | choice | {"closed": plan.peak_bytes, "traced": traced.peak_bytes, "capacity": plan.capacity_bytes, "kinds": kinds}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: traced / closed by device."""
    lines = ["| device | draws | median of traced / closed | lowest | highest |", "|---|---|---|---|---|"]
    done = [row for row in rows if "failed" not in row]
    for device in (*DEVICES, "all"):
        found = [row["traced"] / row["closed"] for row in done if device in (row["device"], "all")]
        if found:
            lines.append(f"| {device} | {len(found)} | {statistics.median(found):.2f} | {min(found):.2f} | {max(found):.2f} |")
    return "\n".join([*lines, "", f"{len(rows) - len(done)} of {len(rows)} draws could not be planned."])


if __name__ == "__main__":
    main()
