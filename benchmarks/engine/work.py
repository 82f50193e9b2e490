"""What every contender is asked to do, and the row files they do it on. Starts nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Work:
    """One training task: constant learning rate, dropout 0, gradient norm at most 1; what is trained on what is its `kind`."""

    model: str
    rows: str
    out: str
    steps: int = 60
    batch: int = 8
    rank: int = 8
    alpha: int = 16
    lr: float = 2e-4
    max_tokens: int = 512
    threads: int = 2
    seed: int = 0
    pad: int = 0
    kind: str = "lora"  # one of contenders.KINDS
    option: str = ""  # what this contender's variant switches on
    bf16: bool = False  # mixed precision, at the peers that are asked for it
    liger: bool = False  # Liger's kernels, likewise
    device: str = "cpu"  # for peers that have to be told

    def at(self, out: Path, option: str = "", rows: Path | None = None, bf16: bool = False, liger: bool = False) -> Work:
        return replace(self, out=str(out), option=option, rows=str(rows or self.rows), bf16=bf16, liger=liger)

    def save(self, file: Path) -> Path:
        file.write_text(json.dumps(asdict(self), indent=1))
        return file


def pad_token(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text())["pad_token_id"])


def peers_rows(rows: Path, run: Path, out: Path) -> Path:
    """Write the rows the finished run `run` trained on, in its order, then the others: what peers read from top to bottom.

    Rows of a run are numbered as they stand in the file, without the rejected ones and without blank lines.
    """
    rejected = {json.loads(line)["line"] for line in (run / "rejects.jsonl").open()} if (run / "rejects.jsonl").exists() else set()
    kept = [line for number, line in enumerate(rows.open(encoding="utf-8"), 1) if line.strip() and number not in rejected]
    order = [sample for line in (run / "steps.jsonl").open() for sample in json.loads(line)["samples"]]
    order += sorted(set(range(len(kept))) - set(order))
    if "rejected" in json.loads(kept[0]):
        out.write_text("".join(kept[number] for number in order), encoding="utf-8")
        return out
    chosen = [_alpaca(json.loads(kept[number])) for number in order]
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen), encoding="utf-8")
    merged = [row | {"instruction": _question(row), "input": ""} for row in chosen]
    out.with_suffix(".json").write_text(json.dumps(merged, ensure_ascii=False), encoding="utf-8")
    with out.with_suffix(".messages.jsonl").open("w", encoding="utf-8") as handle:
        for row in merged:
            turns = [{"role": "user", "content": row["instruction"]}, {"role": "assistant", "content": row["output"]}]
            handle.write(json.dumps({"messages": turns}, ensure_ascii=False) + "\n")
    return out


def pairs_of(rows: Path, out: Path) -> Path:
    """Write pairs for DPO: each row's answer is the chosen one, that of a row far off the rejected one."""
    known = [json.loads(line) for line in rows.open(encoding="utf-8")]
    with out.open("w", encoding="utf-8") as handle:
        for number, row in enumerate(known):
            other = known[(number + len(known) // 2) % len(known)]
            handle.write(json.dumps({"prompt": _question(row), "chosen": row["output"], "rejected": other["output"]}) + "\n")
    return out


def _alpaca(row: dict[str, str]) -> dict[str, str]:
    return {"instruction": row["instruction"], "input": row.get("input") or "", "output": row["output"]}


def _question(row: dict[str, str]) -> str:
    """How holdfast joins an instruction and its input."""
    return f"{row['instruction']}\n{row['input']}" if row.get("input", "").strip() else row["instruction"]
