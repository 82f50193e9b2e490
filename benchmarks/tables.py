"""Networks on tables beside scikit-learn's MLP, LightGBM and TabM of its authors: the same splits, test scores, seconds, memory.

    pip install scikit-learn lightgbm tabm && python benchmarks/tables.py [--splits 3] [--only mlp,tabm] [--kept cells.jsonl]

Each figure is kept as a line of a file as it comes, so that a measurement that was cut short goes on where it was. Seconds are those of
all CPUs (of a run of holdfast: supervisor, trainer and evaluation), because a busy machine changes those on the clock much more.

Sets that ship with scikit-learn, and generated ones with a known truth. One setting for all sets on each side: scikit-learn's and
LightGBM's defaults (the MLP on standardised columns, with its early stopping), holdfast with 80 epochs in batches of 64, the authors'
TabM with the same widths, members, epochs, batches, AdamW and cosine. Nothing is tuned on any test part. Score: R2 of numbers,
accuracy of classes. Each contender runs in a process of its own.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SETS = ("diabetes", "breast_cancer", "wine", "digits", "friedman", "hastie", "with_names")
RIVALS = ("mlp", "lightgbm", "tabm_authors")
EPOCHS, BATCH, RATE, DECAY = 80, 64, 2e-3, 0.05
NETWORKS = {
    "residual": {"kind": "residual", "hidden": [128, 128], "dropout": 0.1},
    "tabm": {"kind": "tabm", "hidden": [128, 128], "dropout": 0.1},
}


def load(name: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """(columns, target, whether it is classes)"""
    from sklearn import datasets

    if name in ("diabetes", "breast_cancer", "wine", "digits"):
        found = getattr(datasets, f"load_{name}")()
        return found.data, found.target, name != "diabetes"
    if name == "friedman":
        x, y = datasets.make_friedman1(n_samples=3000, noise=1.0, random_state=0)
        return x, y, False
    if name == "hastie":
        x, y = datasets.make_hastie_10_2(n_samples=4000, random_state=0)
        return x, (y > 0).astype(int), True
    draw = np.random.default_rng(0)  # numbers and a name whose effect is drawn for each of 30 values
    x, kind = draw.normal(size=(3000, 5)), draw.integers(0, 30, 3000)
    y = np.sin(2 * x[:, 0]) + x[:, 1] * (x[:, 2] > 0) + draw.normal(size=30)[kind] + 0.3 * draw.normal(size=3000)
    return np.column_stack([x, kind]), y, False


def parts(name: str, split: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool]:
    x, y, classes = load(name)
    order = np.random.default_rng(split).permutation(len(y))
    held = max(40, len(y) // 5)
    return x[order[held:]], y[order[held:]], x[order[:held]], y[order[:held]], classes


def rival(kind: str, name: str, split: int) -> float:
    """The test score of another library."""
    if kind == "tabm_authors":
        return theirs(name, split)
    x, y, test_x, test_y, classes = parts(name, split)
    if kind == "mlp":
        from sklearn.neural_network import MLPClassifier, MLPRegressor
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        if name == "with_names":
            x, test_x = (np.column_stack([part[:, :5], np.eye(30)[part[:, 5].astype(int)]]) for part in (x, test_x))
        model = make_pipeline(
            StandardScaler(), (MLPClassifier if classes else MLPRegressor)(early_stopping=True, max_iter=500, random_state=split)
        )
    else:
        import lightgbm

        model = (lightgbm.LGBMClassifier if classes else lightgbm.LGBMRegressor)(verbose=-1, num_threads=1)
        if name == "with_names":
            return float(model.fit(x, y, categorical_feature=[5]).score(test_x, test_y))
    return float(model.fit(x, y).score(test_x, test_y))


def theirs(name: str, split: int) -> float:
    """The test score of the package `tabm`, trained as ours is: each member its own loss, their mean as the answer."""
    import tabm
    import torch

    x, y, test_x, test_y, classes = parts(name, split)
    torch.manual_seed(split)
    torch.set_num_threads(1)
    names, numbers = ([30], x.shape[1] - 1) if name == "with_names" else ([], x.shape[1])
    mean, spread = x[:, :numbers].mean(0), x[:, :numbers].std(0)
    shift, scale = (0.0, 1.0) if classes else (y.mean(), y.std())

    def given(some: np.ndarray) -> tuple[torch.Tensor, torch.Tensor | None]:
        scaled = (some[:, :numbers] - mean) / np.where(spread > 0, spread, 1.0)
        return torch.tensor(scaled, dtype=torch.float32), torch.tensor(some[:, numbers:], dtype=torch.int64) if names else None

    network = tabm.TabM.make(
        n_num_features=numbers,
        cat_cardinalities=names,
        d_out=len(np.unique(y)) if classes else 1,
        n_blocks=2,
        d_block=128,
        dropout=0.1,
        k=16,
    )
    inputs, codes = given(x)
    target = torch.tensor(y, dtype=torch.int64) if classes else torch.tensor((y - shift) / scale, dtype=torch.float32)
    steps = EPOCHS * -(-len(y) // BATCH)
    adam = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    cosine = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 0.5 * (1 + np.cos(np.pi * step / steps)))
    for _ in range(EPOCHS):
        for some in torch.randperm(len(y)).split(BATCH):
            out = network(inputs[some], None if codes is None else codes[some])
            wanted = target[some][:, None].expand(-1, out.shape[1])
            loss = (
                torch.nn.functional.cross_entropy(out.flatten(0, 1), wanted.flatten()) if classes else ((out[..., 0] - wanted) ** 2).mean()
            )
            adam.zero_grad()
            loss.backward()
            adam.step()
            cosine.step()
    network.eval()
    with torch.no_grad():
        found = network(*given(test_x))
    if classes:
        return float((found.softmax(-1).mean(1).argmax(-1).numpy() == test_y).mean())
    guess = found[..., 0].mean(1).numpy() * scale + shift
    return float(1 - ((guess - test_y) ** 2).sum() / ((test_y - test_y.mean()) ** 2).sum())


def ours(network: str, name: str, split: int, folder: Path) -> float:
    """The test score of a whole `holdfast train`."""
    x, y, test_x, test_y, classes = parts(name, split)
    columns = [f"x{at}" for at in range(x.shape[1])]
    for file, some, wanted in (("train", x, y), ("test", test_x, test_y)):
        with (folder / f"{file}.csv").open("w", newline="") as out:
            csv.writer(out).writerows(
                [[*columns, "y"], *([*row, value] for row, value in zip(some.tolist(), wanted.tolist(), strict=True))]
            )
    config = {
        "task": "tabular",
        "data": {"files": ["train.csv"], "held_out_files": ["test.csv"]},
        "table": {"target": "y", "kind": "classification" if classes else "regression"}
        | ({"categories": ["x5"]} if name == "with_names" else {}),
        "network": NETWORKS[network] | {"exports": []},
        "train": {"epochs": EPOCHS, "effective_batch": BATCH, "lr": RATE, "weight_decay": DECAY, "seed": split},
    }
    (folder / "c.yaml").write_text(json.dumps(config))
    run = folder / "run"
    command = [sys.executable, "-m", "holdfast", "train", "c.yaml", "--run", str(run), "--quiet"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    return float(metrics["accuracy" if classes else "r2"])


def score_of(kind: str, name: str, split: int) -> tuple[float, int | None]:
    """(test score, most bytes of any process where the contender says so)"""
    if kind not in NETWORKS:
        return rival(kind, name, split), None
    with tempfile.TemporaryDirectory() as folder:
        score = ours(kind, name, split, Path(folder))
        return score, json.loads((Path(folder) / "run" / "summary.json").read_text())["peak_bytes"]


def measured(kind: str, name: str, split: int) -> dict[str, Any]:
    """One contender on one split, in a process of its own."""
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, __file__, "--one", kind, name, str(split)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    text = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{kind} on {name} ended with {status}")
    score, peak = json.loads(text)
    return {
        "kind": kind,
        "set": name,
        "split": split,
        "score": score,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "bytes": peak or used.ru_maxrss * 1024,
    }


def table(cells: list[dict[str, Any]], kinds: list[str]) -> str:
    """Mean and spread of each set's scores; below them seconds of CPU and memory."""
    lines = [f"| set | {' | '.join(kinds)} |", f"|---{'|---' * len(kinds)}|"]
    for name in SETS:
        row = []
        for kind in kinds:
            scores = np.array([one["score"] for one in cells if (one["set"], one["kind"]) == (name, kind)])
            row.append(f"{scores.mean():.3f} ± {scores.std():.3f} ({len(scores)})" if len(scores) else "")
        lines.append(f"| {name} | {' | '.join(row)} |")
    for title, key, unit in (("mean seconds of CPU", "cpu_seconds", 1), ("most MiB", "bytes", 1 << 20)):
        found = [[one[key] for one in cells if one["kind"] == kind] for kind in kinds]
        of = np.mean if unit == 1 else max
        lines.append(f"| {title} | {' | '.join(f'{of(some) / unit:.1f}' if some else '' for some in found)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--only", default=",".join((*RIVALS, *NETWORKS)), help="who is measured")
    parser.add_argument(
        "--kept", type=Path, default=Path("tables.jsonl"), help="where figures are kept; those in it are not measured again"
    )
    parser.add_argument("--one", nargs=3, metavar=("KIND", "SET", "SPLIT"), help="score of one contender, for the processes this starts")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(score_of(arguments.one[0], arguments.one[1], int(arguments.one[2]))))
        return
    kinds = arguments.only.split(",")
    cells = [json.loads(line) for line in arguments.kept.read_text().splitlines()] if arguments.kept.exists() else []
    known = {(one["kind"], one["set"], one["split"]) for one in cells}
    for split in range(arguments.splits):
        for name in SETS:
            for kind in kinds:
                if (kind, name, split) not in known:
                    cells.append(measured(kind, name, split))
                    with arguments.kept.open("a") as out:
                        out.write(json.dumps(cells[-1]) + "\n")
    print(table(cells, kinds))


if __name__ == "__main__":
    main()
