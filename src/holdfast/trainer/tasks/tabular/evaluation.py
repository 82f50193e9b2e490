"""Load the finished network from its folder, measure it on the held-out rows beside forecasts that need none, and export it."""

from __future__ import annotations

import numpy as np
import torch

from holdfast.base.files import Json
from holdfast.base.intervals import interval, interval_of_groups, verdict
from holdfast.base.units import counted
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.config.table import columns_of
from holdfast.run.folder import RunFolder
from holdfast.tables.table.form import Form, TargetColumn
from holdfast.tables.table.statistics import in_order
from holdfast.tables.table.table_set import HELD_OUT, TRAINING, TableSet, load_table
from holdfast.trainer.common.device import prepare_torch
from holdfast.trainer.protocol.task import Asked
from holdfast.trainer.tasks.tabular.artifact import export, load, note
from holdfast.trainer.tasks.tabular.losses import RowLoss, class_weights, combined
from holdfast.trainer.tasks.tabular.metrics import (
    Column,
    middle_of,
    of_classes,
    of_numbers,
    of_quantiles,
    one_after_another,
    row_losses,
    trades,
)

_AT_ONCE = 8192  # rows
_COMPARED = 64  # rows of which exports must give what the network gives
_MOST = 1_000_000  # training rows from which quantiles of the target are taken


def measured(run: RunFolder, config: Config, settings: Settings, asked: Asked) -> Json:
    """Build the content of evaluation.json. eval_base: held-out loss of the best naive forecast; eval_tuned: of the network."""
    device = prepare_torch(settings)
    network, form, loss = load(run.artifact, config, device)
    table = load_table(run.data_file)
    rows = table.rows_of(HELD_OUT)
    result: Json = {"loads": True, "rows": len(rows), "eval_base": None, "eval_tuned": None, "exact_match": None, "samples": []}
    if len(rows):
        predicted = _predictions(network, table, rows, loss, device, asked)
        result |= compare_with_naive(config, table, form, rows, predicted, loss.name)
    some = (rows if len(rows) else table.rows_of(TRAINING))[:_COMPARED]
    result["exports"] = export(run.artifact, config, *_raw_columns(table, form, some))
    kept = ("loss", "class_weights", "metrics", "baselines", "gain", "verdict", "says", "trades", "exports", "rows")
    note(run.artifact, {"held_out": {name: result[name] for name in kept if name in result}})
    return result


def _predictions(
    network: torch.nn.Module, table: TableSet, rows: np.ndarray, loss: RowLoss, device: torch.device, asked: Asked
) -> Column:  # fmt: skip
    """Predict [rows, outputs]: probabilities of the classes, or numbers as the target is scaled."""
    found = []
    with torch.inference_mode():
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            inputs, codes = torch.from_numpy(table.inputs[some]).to(device), torch.from_numpy(table.codes[some]).to(device, torch.int64)
            outputs = combined(network(inputs, codes), loss.name)
            found.append((outputs.exp() if loss.name == "cross-entropy" else outputs).double().cpu().numpy())
            asked(len(some))
    return np.concatenate(found)


def compare_with_naive(config: Config, table: TableSet, form: Form, rows: np.ndarray, predicted: Column, loss: str) -> Json:
    """Compare the network with naive forecasts on the same rows: losses, the gain with its interval, and metrics."""
    target = table.target[rows].astype(np.float64)
    weights = class_weights(columns_of(config), form.target)
    ours = row_losses(loss, predicted, target, columns_of(config), weights)
    before = _before(table, rows, form.target) if form.target.horizon and not form.target.classes else None
    forecasts = _naive(config, table, form.target, len(rows), loss, before)
    naive = {name: row_losses(loss, forecast, target, columns_of(config), weights) for name, forecast in forecasts.items()}
    best = min(naive, key=lambda name: float(naive[name].mean()))
    series = table.file[rows]  # a file is one, and all of them stand side by side in time
    at_once, horizon = len(np.unique(series)), form.target.horizon or 0
    gain = gain_of(naive[best] - ours, None if table.group is None else table.group[rows], horizon * at_once)
    result: Json = {
        "loss": loss,
        "class_weights": weights and dict(zip(form.target.classes, weights, strict=True)),
        "eval_base": float(naive[best].mean()),
        "eval_tuned": float(ours.mean()),
        "baselines": {name: float(losses.mean()) for name, losses in naive.items()},
        "best_naive": best,
        "gain": gain,
        "verdict": verdict(gain["interval"]),
    }
    if form.target.classes:
        result["metrics"] = of_classes(predicted, target, form.target.classes)
    else:
        own, wanted = form.target.unscaled(predicted), form.target.stood(table.target[rows])
        middle = middle_of(own, columns_of(config).quantiles) if loss == "quantile" else own[:, 0]
        result["metrics"] = of_numbers(middle, wanted)
        if loss == "quantile":
            result["metrics"] |= of_quantiles(own, wanted, columns_of(config).quantiles)
        if before is not None:
            taken = one_after_another(series, horizon)
            cost = columns_of(config).cost
            result["trades"] = trades(middle[taken], wanted[taken], before[taken], horizon, cost, at_once)
    return result | {"says": says(result, len(rows))}


def gain_of(gained: Column, group: np.ndarray | None, shared: int) -> Json:
    """Return the mean gain with its interval: over stretches of rows, or over groups where whole ones are held out."""
    return interval(gained, shared) if group is None else interval_of_groups(gained, group)


def says(result: Json, rows: int) -> str:
    """Say in one sentence what was found, and what was not."""
    gain, best = result["gain"], result["best_naive"].replace("_", " ")
    unit = "" if result["loss"] == "cross-entropy" else ", target in standard deviations"
    if result["class_weights"]:
        unit = ", weighted by class (table.class_weights)"
    numbers = f"held-out {result['loss']} {result['eval_tuned']:.5g}, the naive forecast ({best}) {result['eval_base']:.5g}"
    numbers += f" on {counted(rows, 'row')}{unit}"
    reach = f"; gained {gain['mean']:.3g}" + (f" ({gain['interval'][0]:.3g} to {gain['interval'][1]:.3g})" if gain["interval"] else "")
    words = {
        "better": f"better than naive: {numbers}{reach}",
        "worse": f"worse than naive: {numbers}{reach}; nothing is predicted",
        "cannot_tell": f"no better than naive, as far as these rows can tell: {numbers}{reach}; nothing is predicted",
    }[result["verdict"]]
    if "trades" in result:
        deal = result["trades"]
        beats = {"better": "more", "worse": "less", "cannot_tell": "no more, as far as they can tell,"}[deal["verdict"]]
        rule = deal["rules"]["model"]
        earned = f"{rule['net_return']['mean']:.2e} each" if rule["net_return"]["mean"] is not None else "nothing"
        words += f". {rule['trades']:,} trades after costs: {earned}, {beats} than the rule {deal['best_naive'].replace('_', ' ')}"
    return words


def _naive(config: Config, table: TableSet, about: TargetColumn, count: int, loss: str, before: Column | None) -> dict[str, Column]:
    """Forecast `count` rows without looking at a feature: the mean or frequencies of training, no change, the last change.

    Frequencies are weighted as the loss is: of all constant forecasts they then lose least in training. before: the last change at each
    row, where there is a horizon.
    """
    if about.classes:
        shares = np.array(about.counts, np.float64) * (class_weights(columns_of(config), about) or 1.0)
        return {"shares_of_classes": np.tile(shares / shares.sum(), (count, 1))}
    learned = table.target[table.rows_of(TRAINING)[:_MOST]].astype(np.float64)
    if loss == "quantile":
        return {"quantiles_of_training": np.tile(np.quantile(learned, columns_of(config).quantiles), (count, 1))}
    found = {"mean_of_training": np.zeros((count, 1)), "median_of_training": np.full((count, 1), float(np.median(learned)))}
    if before is not None:
        found["no_change"] = np.full((count, 1), -about.mean / about.scale)
        found["last_change"] = np.nan_to_num(about.scaled(before))[:, None]
    return found


def _before(table: TableSet, rows: np.ndarray, about: TargetColumn) -> Column:
    """Return the change in the horizon that ended at each row, NaN where unknown: the target of the row that far before it."""
    if in_order(table.file, table.time):
        at = rows - (about.horizon or 0)
        source = np.maximum(at, 0)
    else:
        order = np.lexsort((table.time, table.file))
        place = np.empty(len(table), np.int64)
        place[order] = np.arange(len(table))
        at = place[rows] - (about.horizon or 0)
        source = order[np.maximum(at, 0)]
    known = (at >= 0) & (table.file[source] == table.file[rows])
    return np.where(known, about.stood(table.target[source]), np.nan)


def _raw_columns(table: TableSet, form: Form, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (numbers in their own units, codes) of rows as an export takes them; NaN where a number is missing and that is told."""
    numbers = len(form.numbers)
    inputs = table.inputs[rows].astype(np.float64)
    raw = inputs[:, :numbers] * form.scales + form.means
    told = form.indicators
    raw[:, told] = np.where(inputs[:, numbers:] > 0, np.nan, raw[:, told])
    return torch.from_numpy(raw), torch.from_numpy(table.codes[rows].astype(np.int64))
