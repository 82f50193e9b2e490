"""Networks on tables beside scikit-learn's MLP and LightGBM: the same splits, test scores, seconds, memory.

    pip install scikit-learn lightgbm && python benchmarks/tables.py [--splits 3]

Sets that ship with scikit-learn, and generated ones with a known truth. One setting for all sets on each side: scikit-learn's and
LightGBM's defaults (the MLP on standardised columns, with its early stopping), holdfast with 80 epochs in batches of 64. Nothing is
tuned on any test part. Score: R2 of numbers, accuracy of classes. Each contender runs in a process of its own.
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
RIVALS = ("mlp", "lightgbm")
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
    """The test score of a scikit-learn MLP or LightGBM."""
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

        model = (lightgbm.LGBMClassifier if classes else lightgbm.LGBMRegressor)(verbose=-1, num_threads=2)
        if name == "with_names":
            return float(model.fit(x, y, categorical_feature=[5]).score(test_x, test_y))
    return float(model.fit(x, y).score(test_x, test_y))


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
        "train": {"epochs": 80, "effective_batch": 64, "lr": 2e-3, "weight_decay": 0.05, "seed": split},
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
    parser.add_argument("--one", nargs=3, metavar=("KIND", "SET", "SPLIT"), help="score of one rival, for the processes this starts")
    arguments = parser.parse_args()
    if arguments.one:
        print(rival(arguments.one[0], arguments.one[1], int(arguments.one[2])))
        return
    print(f"| set | {' | '.join([*RIVALS, *NETWORKS])} |\n|---{'|---' * (len(RIVALS) + len(NETWORKS))}|", flush=True)
    spent: dict[str, list[tuple[float, int]]] = {kind: [] for kind in (*RIVALS, *NETWORKS)}
    for name in SETS:
        cells = []
        for kind in (*RIVALS, *NETWORKS):
            found = [measured(kind, name, split) for split in range(arguments.splits)]
            scores = np.array([score for score, _, _ in found])
            spent[kind] += [(seconds, peak) for _, seconds, peak in found]
            cells.append(f"{scores.mean():.3f}" + (f" ± {scores.std():.3f}" if len(scores) > 1 else ""))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    for kind, costs in spent.items():
        print(f"{kind}: {np.mean([one for one, _ in costs]):.1f} s, {max(peak for _, peak in costs) >> 20} MiB")


if __name__ == "__main__":
    main()
