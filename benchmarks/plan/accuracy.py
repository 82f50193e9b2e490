"""How far what a plan says of memory is from what a step takes: drawn shapes, traced without weights, then run with them.

    python benchmarks/plan/accuracy.py --seed N [--draws 60] [--kinds] [--objectives] [--out FILE.jsonl]     trace and run
    python benchmarks/plan/accuracy.py --table FILE.jsonl ...                        the table of what was found

Measured is what torch's CPU allocator gave out at the most: what lies there before the step, and the profiler's record of every
allocation and release within it. Each draw is a line of the file; a draw that is in it already is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draws import MOST_OPERATIONS, draws

SOURCE = Path(__file__).parents[2] / "src"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--seed", type=int)
    arguments.add_argument("--draws", type=int, default=60)
    arguments.add_argument("--kinds", action="store_true", help="of all adapters, optimizers and ways to hold frozen weights")
    arguments.add_argument("--objectives", action="store_true", help="of preferences, too")
    arguments.add_argument("--most", type=float, default=MOST_OPERATIONS, help="operations of a step")
    arguments.add_argument("--out", type=Path, default=Path("accuracy.jsonl"))
    arguments.add_argument("--table", type=Path, nargs="*")
    arguments.add_argument("--role", choices=("trace", "measure"), help=argparse.SUPPRESS)
    asked = arguments.parse_args()
    if asked.table:
        rows = [json.loads(line) for file in asked.table for line in file.read_text().splitlines()]
        traced_ones = [row for row in rows if row["trace"]["peak"]]
        print(table(traced_ones))
        print(f"\n{len(rows) - len(traced_ones)} of {len(rows)} draws could not be traced")
    elif asked.role:
        work = {"trace": traced, "measure": measured}[asked.role]
        for line in sys.stdin:
            print(json.dumps(work(json.loads(line))), flush=True)
    else:
        _run(list(draws(asked.seed, asked.draws, asked.kinds, asked.objectives, asked.most)), asked.out)


def _run(wanted: list[dict[str, Any]], out: Path) -> None:
    done = {(row["seed"], row["number"]) for row in map(json.loads, out.read_text().splitlines())} if out.exists() else set()
    left = [draw for draw in wanted if (draw["seed"], draw["number"]) not in done]
    roles = {role: _started(role) for role in ("trace", "measure")}
    for draw in left:
        row = draw | {role: _asked(child, draw) for role, child in roles.items()}
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if row["trace"]["failed"]:
            print(f"{draw['seed']}/{draw['number']:3} cannot be traced: {row['trace']['failed']}", flush=True)
            continue
        peak, real = row["trace"]["peak"], row["measure"]["peak"]
        print(
            f"{draw['seed']}/{draw['number']:3} {draw['model']['model_type']:12} {peak / 1e6:9.1f} MB, measured {real / 1e6:9.1f}", end=" "
        )
        print(f"{peak / real - 1:+.3%}", flush=True)
    for child in roles.values():
        child.stdin.close()
        child.wait()


def _started(role: str) -> Any:
    command = [sys.executable, __file__, "--role", role]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def _asked(child: Any, draw: dict[str, Any]) -> Any:
    child.stdin.write(json.dumps(draw) + "\n")
    child.stdin.flush()
    while not (line := child.stdout.readline()).startswith("{"):
        if not line:
            raise SystemExit(f"a child died of draw {draw['number']} of seed {draw['seed']}: {json.dumps(draw)}")
    return json.loads(line)


def _config(draw: dict[str, Any], folder: str = "m") -> Any:
    from holdfast.config.config import Config

    tree = {"model": folder, "data": {"files": "x"}, "adapter": draw["adapter"], "train": draw.get("train", {})}
    return Config.model_validate(tree)


def traced(draw: dict[str, Any]) -> dict[str, Any]:
    """What the product says of a draw."""
    from holdfast.base_model.folder import ModelFacts
    from holdfast.trainer.jobs.account import told

    case = {name: draw[name] for name in ("settings", "lengths", "labels")}
    answer: dict[str, Any] = told(_config(draw), ModelFacts(Path("m"), draw["model"], {}, 0, draw["stored"]), case)
    return {name: answer.get(name) for name in ("peak", "bytes", "held", "mapped", "params", "phase", "flops", "seconds", "failed")}


def measured(draw: dict[str, Any]) -> dict[str, Any]:
    """What the step of a draw takes, with random weights and as many threads as asked."""
    with built(draw) as (task, optimizer, before):
        within = _within(task, optimizer, draw)
    return {"before": before, "within": within, "peak": before + within}


@contextlib.contextmanager
def built(draw: dict[str, Any]) -> Iterator[tuple[Any, Any, int]]:
    """(task, optimizer, bytes of their tensors) of a draw, as they are before a step."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(draw, folder)
        with loaded(draw, folder) as found:
            yield found


def write_model(draw: dict[str, Any], folder: str) -> None:
    """A model folder with random weights."""
    import torch
    import transformers

    kind = torch.float32 if draw["stored"] == "F32" else torch.bfloat16
    about = transformers.AutoConfig.for_model(**draw["model"])
    transformers.AutoModelForCausalLM.from_config(about, dtype=kind).save_pretrained(folder)


@contextlib.contextmanager
def loaded(draw: dict[str, Any], folder: str) -> Iterator[tuple[Any, Any, int]]:
    """As `built`, with the model of a folder."""
    from holdfast.config.settings import Settings
    from holdfast.trainer.common.device import prepare_torch
    from holdfast.trainer.optim.choose import optimizer_of
    from holdfast.trainer.tasks.text.of_shapes import made_rows
    from holdfast.trainer.tasks.text.task import Sft

    settings = Settings.model_validate(draw["settings"])
    device = prepare_torch(settings)
    gc.collect()
    others = there()  # of draws before this one
    config = _config(draw, folder)
    task = Sft(config, settings, made_rows(draw["lengths"], draw["labels"], config.train.objective), device)
    optimizer = optimizer_of(task.artifact, config.train, task.step_hooks.rates)
    gc.collect()
    yield task, optimizer, there() - others


def stepped(task: Any, optimizer: Any, draw: dict[str, Any]) -> None:
    """Do the step."""
    from holdfast.trainer.step.step import compute_gradients, update

    samples, budget = list(range(len(draw["lengths"]))), draw["settings"]["micro_batch_tokens"]
    computed = compute_gradients(task, optimizer, 1, samples, budget, lambda *_: 1.0)
    update(optimizer, computed, 1e-3, 0.5)


def _within(task: Any, optimizer: Any, draw: dict[str, Any]) -> int:
    """The most that a step adds, as torch's allocator counts it."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        stepped(task, optimizer, draw)
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def there() -> int:
    """Bytes of all tensors of this process."""
    import torch

    storages = {}
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def rules(draw: dict[str, Any]) -> dict[str, float]:
    """What popular rules say of a draw, in bytes."""
    model = draw["model"]
    total, trainable = draw["trace"]["params"]["total"], draw["trace"]["params"]["trainable"]
    base = total if draw["adapter"].get("type") in ("full", "layers") else total - trainable
    width = 2 if draw["settings"]["dtype"] == "bf16" else 4
    hidden, layers, heads = model["hidden_size"], model["num_hidden_layers"], model["num_attention_heads"]
    states = total * width + trainable * 16
    korthikanti = layers * sum(length * hidden * (34 + 5 * heads * length / hidden) for length in draw["lengths"]) * width / 2
    return {
        "accelerate estimate-memory, training with Adam (4 x the weights)": 4 * total * width,
        "16 bytes a parameter (ZeRO's count of mixed precision)": 16 * total,
        "weights x 1.2 (EleutherAI's rule for inference)": 1.2 * total * width,
        "weights + 16 bytes a trained parameter": states,
        "the same + activations by Korthikanti et al. (34 s b h + 5 b s^2 a) a layer": states + korthikanti,
        "DeepSpeed estimate_zero2_model_states_mem_needs, one GPU (20 bytes a parameter)": 20 * total,
        "LLMem (Kim et al., IJCAI 2024), one GPU, all weights trained": llmem(model, base, draw["lengths"]),
    } | _peers(draw)


def llmem(model: dict[str, Any], parameters: int, lengths: list[int]) -> float:
    """LLMem's peak on one GPU: weights and optimizer, each layer's output (all are computed again), the output layer's three logits.

    As size_estimator.py of its repository has it, whose weights are measured once they are on the card: 6 bytes each, in 16 bits and in 32.
    The output layer has no moments there, and its logits have 16 bits. CUDA's context, and rounding up to 2 MiB, are left out. It is of
    mixed precision with every weight trained, the only kind it knows.
    """
    hidden, layers, words = (model[name] for name in ("hidden_size", "num_hidden_layers", "vocab_size"))
    rows, longest = len(lengths), max(lengths)
    head = words * hidden
    with_moments = parameters - (0 if model.get("tie_word_embeddings") else head)
    outputs = (2 + layers) * rows * longest * hidden * 2
    logits = rows * words * (longest + 2 * (longest - 1)) * 2
    return 6 * parameters + 8 * with_moments + outputs + logits + 2 * head


def _peers(draw: dict[str, Any]) -> dict[str, float]:
    """What two tools say that estimate before a run, where they are installed; what they add for a GPU's runtime is taken off."""
    billions, quantised = draw["trace"]["params"]["total"] / 1e9, draw["settings"].get("frozen") in ("nf4", "fp4")
    rows, longest, again = len(draw["lengths"]), max(draw["lengths"]), draw["settings"]["checkpointed_layers"] > 0
    full = draw["adapter"].get("type") in ("full", "layers")
    found = {}
    with contextlib.suppress(ImportError):
        from soup_cli.utils.hardware_fit import HardwareFitInput, estimate_peak_vram_gb

        kind = "full" if full else "qlora" if quantised else "lora"
        asked = HardwareFitInput(billions, longest, rows, "adamw_torch", "4bit" if quantised else "none", kind, again)
        found["Soup 0.77 estimate_peak_vram_gb, without its 0.5 GB"] = (estimate_peak_vram_gb(asked).total_gb - 0.5) * 1e9
    with contextlib.suppress(ImportError):
        from peft_doctor.estimator import estimate_vram_gb

        how = {"seq_len": longest, "batch_size": rows, "qlora": quantised, "lora": not full, "gradient_checkpointing": again}
        said = estimate_vram_gb(f"x-{billions:.6f}B", **how).metadata["estimated_total_gb"]
        found["peft-doctor 0.8 estimate_vram_gb, without its 1 GiB"] = (said - 1) * 2**30
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: errors of the plan and of each rule; positive is too much."""
    errors = {"holdfast plan": [row["trace"]["peak"] / row["measure"]["peak"] - 1 for row in rows]}
    for row in rows:
        for name, size in rules(row).items():
            errors.setdefault(name, []).append(size / row["measure"]["peak"] - 1)
    lines = ["| | draws | median error | worst | lowest | within 3 % |", "|---|---|---|---|---|---|"]
    for name, found in errors.items():
        sizes = [abs(error) for error in found]
        within = sum(size < 0.03 for size in sizes) / len(sizes)
        cells = (f"{statistics.median(sizes):.2%}", f"{max(sizes):.2%}", f"{min(found):+.2%}", f"{within:.0%}")
        lines.append(f"| {name} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
