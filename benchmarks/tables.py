"""Networks on tables beside scikit-learn's MLP, LightGBM and TabM of its authors: the same splits, test scores, seconds, memory.

    pip install scikit-learn lightgbm tabm && python benchmarks/tables.py [--splits 3] [--only mlp,tabm]

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


def ours(network: str, name: str, split: int, folder: Path) -> tuple[float, float]:
    """(test score, seconds of the whole command)"""
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
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    return metrics["accuracy" if classes else "r2"], time.perf_counter() - began


def measured(kind: str, name: str, split: int) -> tuple[float, float, int]:
    """(score, seconds, most bytes of any process)"""
    with tempfile.TemporaryDirectory() as folder:
        if kind in NETWORKS:
            score, seconds = ours(kind, name, split, Path(folder))
            peak = json.loads((Path(folder) / "run" / "summary.json").read_text())["peak_bytes"]
            return score, seconds, peak
        began = time.perf_counter()
        child = subprocess.Popen([sys.executable, __file__, "--one", kind, name, str(split)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        text = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        if status:
            raise SystemExit(f"{kind} on {name} ended with {status}")
        return float(text), time.perf_counter() - began, used.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--only", default=",".join((*RIVALS, *NETWORKS)), help="who is measured")
    parser.add_argument("--one", nargs=3, metavar=("KIND", "SET", "SPLIT"), help="score of one rival, for the processes this starts")
    arguments = parser.parse_args()
    if arguments.one:
        print(rival(arguments.one[0], arguments.one[1], int(arguments.one[2])))
        return
    kinds = arguments.only.split(",")
    print(f"| set | {' | '.join(kinds)} |\n|---{'|---' * len(kinds)}|", flush=True)
    spent: dict[str, list[tuple[float, int]]] = {kind: [] for kind in kinds}
    for name in SETS:
        cells = []
        for kind in kinds:
            found = [measured(kind, name, split) for split in range(arguments.splits)]
            scores = np.array([score for score, _, _ in found])
            spent[kind] += [(seconds, peak) for _, seconds, peak in found]
            cells.append(f"{scores.mean():.3f}" + (f" ± {scores.std():.3f}" if len(scores) > 1 else ""))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    for kind, costs in spent.items():
        print(f"{kind}: {np.mean([one for one, _ in costs]):.1f} s, {max(peak for _, peak in costs) >> 20} MiB")


if __name__ == "__main__":
    main()
