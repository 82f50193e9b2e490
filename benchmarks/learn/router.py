"""The router of experts beside one adapter for all beside an oracle: on six made domains with known truth, and on the 24 categories.

    python benchmarks/learn/router.py WORK made                  two rounds of the stream's good rows, then an expert for each domain
    python benchmarks/learn/router.py WORK categories --rows F   rows with a field `category` (and `page`), divided by pages
    python benchmarks/learn/router.py WORK --page                writes benchmarks/results/router.md of what there is

Both bases are small models that were made here. The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from page import router_page
from stream import ROOT, SHAPE, Rows, facts, general_text, holdfast, make_base, make_model, messages, row, write_config, write_rows

GATE, AT_GATE = 30, 6  # rows of a category at the gate at most; wordings of a made fact there


def made(work: Path) -> None:
    known = facts()
    base = work / "pretrained" / "model"
    base = base if base.exists() else make_base(work, known)
    gate = [row(domain, thing, right, way) for domain, of in known.items() for thing, right in of for way in range(AT_GATE)]
    learn(work / "made", base, [messages(known, number, 20) for number in (1, 2)], gate, "topic", {"steps": 120, "lr": 2e-3})


def categories(work: Path, file: Path) -> None:
    """Learn from 40 % of the pages, in two rounds; the base has read another 40 %, the gate is drawn of the rest."""
    parts: list[Rows] = [[], [], [], []]
    for line in file.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        kept = {"instruction": one["instruction"], "output": one["output"], "category": one["category"]}
        parts[(0, 0, 1, 2, 3)[int(hashlib.sha256(one["page"].encode()).hexdigest(), 16) % 5]].append(kept)
    random.Random(0).shuffle(parts[3])
    gate: Rows = []
    for one in parts[3]:
        if sum(other["category"] == one["category"] for other in gate) < GATE:
            gate.append(one)
    base = work / "base" / "model"
    if not base.exists():
        seen = [{name: one[name] for name in ("instruction", "output")} for one in parts[0]]
        write_rows(work / "read.jsonl", seen + [json.loads(line) for line in general_text().splitlines()[::2]] * 8)
        make_model.SIZES["stream"] = SHAPE
        make_model.make_model(work / "unread", work / "read.jsonl", "stream")
        assets = SimpleNamespace(model=work / "unread", rows=work / "read.jsonl")
        train = {"steps": 300, "effective_batch": 32, "lr": 2e-3, "max_tokens": 128, "threads": 1}
        config = write_config(
            assets, work / "base.yaml", adapter={"type": "full"}, train=train, evaluate={"generate": 0}, save={"every": 50}
        )
        done = holdfast("train", config, "--run", work / "base", "--quiet")
        assert done.returncode == 0, done.stdout + done.stderr
    train = {"steps": None, "epochs": 3, "lr": 1e-3, "max_tokens": 128}
    learn(work / "categories", base, parts[1:3], gate, "category", train)


def learn(folder: Path, base: Path, rounds: list[Rows], gate: Rows, field: str, train: dict[str, Any]) -> None:
    """Have each round's rows learned in a round, then experts made of them; keep what was measured beside the folder."""
    (folder / "inbox").mkdir(parents=True, exist_ok=True)
    write_rows(folder / "held.jsonl", gate)
    train = {"effective_batch": 32, "threads": 1} | train
    config = {"adapter": {"r": 32, "alpha": 64, "dropout": 0.0}, "evaluate": {"generate": 0}, "save": {"every": 50}}
    write_config(SimpleNamespace(model=base, rows=""), folder / "base.yaml", train=train, **config)
    tree: dict[str, Any] = {"name": "helper", "config": "base.yaml", "sources": [{"files": "inbox/*.jsonl"}], "folder": "learned"}
    tree |= {"round": {"rows": 100}, "replay": {"general": 0.3}, "gate": {"rows": "held.jsonl", "domains": field, "margin": 0.1}}
    tree["keep"] = {"drop": ["duplicate", "in_held_out"]}
    env = {"HOLDFAST_MODELS": str(folder / "models.jsonl")}
    for number, rows in enumerate(rounds, 1):
        if not (folder / "inbox" / f"{number}.jsonl").exists():
            write_rows(folder / "inbox" / f"{number}.jsonl", rows)
        (folder / "policy.yaml").write_text(json.dumps(tree))
        done = holdfast("learn", folder / "policy.yaml", "--json", cwd=folder, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        print([(one["promoted"], one["why"]) for one in json.loads(done.stdout)["rounds"]], flush=True)
    (folder / "policy.yaml").write_text(json.dumps(tree | {"experts": {"rows": 30, "held": 20}}))
    done = holdfast("learn", folder / "policy.yaml", "--json", cwd=folder, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    folder.with_suffix(".json").write_text(json.dumps({name: found[name] for name in ("all", "experts")}))
    print(done.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("what", nargs="?", choices=("made", "categories"))
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--page", action="store_true")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if arguments.page:
        found = {name: json.loads(file.read_text()) for name in ("made", "categories") if (file := work / f"{name}.json").exists()}
        (ROOT / "benchmarks/results/router.md").write_text(router_page(found), encoding="utf-8")
    elif arguments.what == "made":
        made(work)
    else:
        categories(work, arguments.rows)


if __name__ == "__main__":
    main()
