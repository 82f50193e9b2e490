"""What runs of each kind take of the simulated card, beside what is planned for them: whole runs, their start and last evaluation too.

    python benchmarks/plan/kinds.py OUT.jsonl [NAME ...]       one line a kind; those that are in OUT are left out
    python benchmarks/plan/kinds.py OUT.jsonl --table

All rows have one length and all of their tokens are learned, so a plan's worst step is each of the run's. planned: of the traced plan,
as `holdfast plan` makes it for these rows; measured: the most that torch's allocator had in the trainer; evaluated: in the last
evaluation, another process.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]
SHAPE = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2}
FULL, LAYERS = {"type": "full"}, {"type": "layers", "layers": 2}
HALF, AGAIN = {"weights": "bf16"}, {"checkpointed_layers": 6}
KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "lora fp32": {"train": {"precision": "fp32"}},
    "lora fp16": {"train": {"precision": "fp16"}},
    "lora r 256": {"adapter": {"r": 256}},
    "lora dropout": {"adapter": {"dropout": 0.1}},
    "lora head saved": {"adapter": {"modules_to_save": ["lm_head"]}},
    "lora all layers again": {"train": {"checkpointed_layers": 6}},
    "lora padded": {"train": {"packing": False}},
    "lora neftune": {"train": {"neftune": 5}},
    "lora long rows": {"words": 400, "train": {"max_tokens": 512, "effective_batch": 4}},
    "lora 4 parts": {"train": {"reduction_parts": 4}},
    "lora tied": {"family": "qwen2"},
    "lora 128k words": {"shape": {"vocab_size": 131072, "num_hidden_layers": 2}},
    "lora gemma2": {"family": "gemma2"},
    "lora gemma3 128k words": {
        "family": "gemma3",
        "words": 600,
        "shape": {"vocab_size": 131072, "num_hidden_layers": 2, "sliding_window": 512}
        | {"layer_types": ["sliding_attention", "full_attention"]},
        "train": {"effective_batch": 1, "max_tokens": 640},
    },
    "rslora": {"adapter": {"type": "rslora"}},
    "dora": {"adapter": {"type": "dora"}},
    "dora dropout": {"adapter": {"type": "dora", "dropout": 0.1}},
    "adalora": {"adapter": {"type": "adalora", "target_r": 8}},
    "ia3": {"adapter": {"type": "ia3"}},
    "prompt": {"adapter": {"type": "prompt"}},
    "full": {"adapter": FULL},
    "full fp32": {"adapter": FULL, "train": {"precision": "fp32"}},
    "full fp16": {"adapter": FULL, "train": {"precision": "fp16"}},
    "full weights bf16": {"adapter": FULL, "train": HALF},
    "full moments away": {"adapter": FULL, "train": {"offload": "optimizer"}},
    "full adamw8bit": {"adapter": FULL, "train": {"optimizer": "adamw8bit"}},
    "full paged": {"adapter": FULL, "train": {"optimizer": "paged"}},
    "full lion": {"adapter": FULL, "train": {"optimizer": "lion"}},
    "full sgd": {"adapter": FULL, "train": {"optimizer": "sgd"}},
    "full muon": {"adapter": FULL, "train": {"optimizer": "muon"}},
    "full adafactor": {"adapter": FULL, "train": {"optimizer": "adafactor"}},
    "full schedule_free": {"adapter": FULL, "train": {"optimizer": "schedule_free"}},
    "full tied": {"family": "qwen2", "adapter": FULL},
    "full tied 32k words": {"family": "qwen2", "adapter": FULL, "shape": {"vocab_size": 32768}},
    "full all layers again": {"adapter": FULL, "train": {"checkpointed_layers": 6}},
    "layers": {"adapter": LAYERS},
    "layers weights bf16": {"adapter": LAYERS, "train": HALF},
    "nf4": {"train": {"frozen": "nf4"}},
    "nf4 double": {"train": {"frozen": "nf4", "double_quant": True}},
    "int8": {"train": {"frozen": "int8"}},
    "nf4 dora": {"adapter": {"type": "dora"}, "train": {"frozen": "nf4"}},
    "layers away": {"train": {"offload": "layers"}},
    "layers away nf4": {"train": {"offload": "layers", "frozen": "nf4"}},
    "dpo": {"rows": "pairs", "train": {"objective": "dpo"}},
    "dpo all layers again": {"rows": "pairs", "train": {"objective": "dpo", "checkpointed_layers": 6}},
    "dpo from an adapter": {"rows": "pairs", "train": {"objective": "dpo"}, "start": True},
    "dpo from r 256, again": {"rows": "pairs", "adapter": {"r": 256}, "train": AGAIN | {"objective": "dpo"}, "start": True},
    "kto": {"rows": "marks", "train": {"objective": "kto"}},
    "kto from r 256, again": {"rows": "marks", "adapter": {"r": 256}, "train": AGAIN | {"objective": "kto"}, "start": True},
    "orpo": {"rows": "pairs", "train": {"objective": "orpo"}},
    "simpo": {"rows": "pairs", "train": {"objective": "simpo"}},
    "reward": {"rows": "pairs", "train": {"objective": "reward"}},
    "orpo full": {"rows": "pairs", "adapter": FULL, "train": {"objective": "orpo"}},
}  # fmt: skip
BITS = ("nf4", "int8", "8bit", "paged")


def main() -> None:
    out, *names = sys.argv[1:]
    file = Path(out)
    if names == ["--table"]:
        print(table([json.loads(line) for line in file.read_text().splitlines()]))
        return
    known = {json.loads(line)["kind"] for line in file.read_text().splitlines()} if file.exists() else set()
    from support import forked

    forked.install()
    for name in names or KINDS:
        if name in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = measured(name, Path(folder))
        with file.open("a") as kept:
            kept.write(json.dumps(row) + "\n")
        print(line_of(row), flush=True)


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Run a kind and plan it."""
    from conftest import events, holdfast
    from simulated import card

    config = written(name, folder)
    env = card.environment(ledger=folder / "ledger", bitsandbytes=any(word in name for word in BITS))
    started = {}
    if KINDS[name].get("start"):
        before = holdfast("train", config, "--run", folder / "before", "train.steps=1", env=env)
        if before.returncode:
            return {"kind": name, "failed": before.stderr[-500:]}
        started = {"arguments": [f"adapter.start={folder / 'before' / 'adapter'}"]}
    run = folder / "run"
    with Watched(folder / "ledger") as watched:
        done = holdfast("train", config, "--run", run, *started.get("arguments", []), env=env)
    if done.returncode:
        return {"kind": name, "failed": (done.stderr or done.stdout)[-500:]}
    compared = events(run, "memory_compared")[-1]
    plan = planned(run)
    trainer, evaluated = watched.most(run)
    return {
        "kind": name,
        "planned": plan["there"],
        "closed": compared["planned_bytes"],
        "measured": compared["measured_bytes"],
        "trainer": trainer,
        "evaluated": evaluated,
        "phase": plan["phase"],
        "bytes": plan["bytes"],
    }


def written(name: str, folder: Path) -> Path:
    """Write model, rows and config of a kind; the config's file."""
    import yaml
    from make_model import make_model

    kind = KINDS[name]
    rows = made_rows(kind.get("rows", "answers"), kind.get("words", 90))
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_model(folder / "small", file, "test")
    model = made_model(kind.get("family", "llama"), folder / "small", folder / "model", SHAPE | kind.get("shape", {}))
    train = {"steps": 2, "attention": "eager", "precision": "bf16", "effective_batch": 8, "micro_batch_tokens": 1024, "max_tokens": 256}
    tree = {
        "model": str(model),
        "data": {"files": [str(file)], "held_out": 1 / 6, **({"train_on": "all"} if kind.get("rows") is None else {})},
        "adapter": {"r": 16} if "type" not in kind.get("adapter", {}) else {},
        "train": train | {"checkpointed_layers": 0, "threads": 1, "lr": 1e-4},
        "evaluate": {"generate": 2, "max_new_tokens": 8},
        "run": {"standby": False},
    }
    for section in ("adapter", "train"):
        tree[section] |= kind.get(section, {})
    config = folder / "run.yaml"
    config.write_text(yaml.safe_dump(tree))
    return config


def made_rows(kind: str, words: int) -> list[dict[str, Any]]:
    """48 rows of one length: digits are tokens of their own."""

    def said(number: int, count: int) -> str:
        return " ".join(str((number + at) % 10) for at in range(count // 2))

    if kind == "pairs":
        each = words // 2 - 10
        return [{"prompt": f"Say {row:03}", "chosen": said(row, each), "rejected": said(row + 1, each)} for row in range(48)]
    if kind == "marks":
        return [{"prompt": f"Say {row:03}", "completion": said(row, words - 10), "label": row % 2 == 0} for row in range(48)]
    return [{"instruction": f"Say {row:03}", "input": "", "output": said(row, words - 10)} for row in range(48)]


def made_model(family: str, source: Path, out: Path, shape: dict[str, Any]) -> Path:
    from support import shipped

    if family == "mixtral":
        import transformers

        shipped.FAMILIES["mixtral"] = lambda words: transformers.MixtralConfig(
            **shipped.SHAPE, vocab_size=words, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
        )
    shape = shape | ({"intermediate_size": 128} if family == "mixtral" else {})
    shape |= {"head_dim": 32, "max_position_embeddings": 1024}
    shape |= {"layer_types": ["full_attention"] * shape["num_hidden_layers"]} if family in ("qwen2", "gemma2") else {}
    return shipped.make_family(family, source, out, **shape)


def planned(run: Path) -> dict[str, Any]:
    """The traced plan of a run's own rows: what of it lies on the card beside the context."""
    import numpy as np

    from holdfast.base_model.folder import read_model
    from holdfast.data.token_set.token_set import load_tokens
    from holdfast.planning.past_runs import _ON_A_CARD
    from holdfast.planning.planning import RowLengths, planner
    from holdfast.run.folder import RunFolder

    folder = RunFolder(run)
    config, machine = folder.config(), json.loads(folder.machine_file.read_text())
    machine["packages"]["triton"] = None  # there is no driver to compile for, so each start leaves the fused kernels out
    lengths = np.diff(load_tokens(folder.data_file).starts)
    with planner(
        config, machine, RowLengths(int(lengths.max()), int(lengths.max()) * config.train.effective_batch), read_model(config.model)
    ) as work:
        found = work.chosen()
    kinds = {kind: getattr(found.plan.bytes, kind) for kind in _ON_A_CARD}
    return {"there": sum(kinds.values()), "phase": found.demand.phase, "bytes": kinds}


class Watched:
    """The most that each process had of the card while this is entered, read of its ledger."""

    def __init__(self, ledger: Path) -> None:
        self.ledger, self.of, self._over = ledger, dict[int, int](), threading.Event()
        self.looking = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watched:
        self.looking.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self.looking.join()

    def _look(self) -> None:
        while not self._over.wait(0.002):
            if self.ledger.exists():
                data = self.ledger.read_bytes()
                for pid, size, _ in struct.iter_unpack("qqd", data[: len(data) // 24 * 24]):
                    if pid:
                        self.of[pid] = max(self.of.get(pid, 0), size)

    def most(self, run: Path) -> tuple[int, int]:
        """(of the trainer, of the process of the last evaluation)."""
        pid = json.loads((run / "attempts/001/rank0.json").read_text())["identity"]["pid"]
        return self.of.get(pid, 0), max((size for other, size in self.of.items() if other != pid), default=0)


def line_of(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['kind']:26} FAILED {row['failed']}"
    off = row["planned"] / row["measured"] - 1
    near = f"planned {row['planned']:>12,} measured {row['measured']:>12,} {off:+7.1%}"
    others = f"closed form {row['closed'] / row['measured'] - 1:+7.1%}  last evaluation {row['evaluated'] / row['measured']:5.0%}"
    return f"{row['kind']:26} {near}  {others}"


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    told = [
        "| | planned MiB | measured MiB | planned / measured | closed form / measured | last evaluation / measured |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        sizes = (row["planned"] / 2**20, row["measured"] / 2**20)
        shares = (row["planned"] / row["measured"], row["closed"] / row["measured"], row["evaluated"] / row["measured"])
        told.append(f"| {row['kind']} | " + " | ".join([f"{size:.2f}" for size in sizes] + [f"{share:.3f}" for share in shares]) + " |")
    return "\n".join(told)


if __name__ == "__main__":
    os.environ.setdefault("HOLDFAST_CACHE", tempfile.mkdtemp())
    main()
