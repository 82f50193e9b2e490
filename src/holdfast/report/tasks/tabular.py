"""How a run on tables is told of."""

from __future__ import annotations

from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.config.table import columns_of, network_of
from holdfast.report.words import TaskWords
from holdfast.run.artifact import PROGRAM
from holdfast.run.folder import RunFolder

_SCALED = ", target in standard deviations"
_OWN_UNIT = {"mse": ", in the target's own unit squared", "rmse": ", in the target's own unit", "mae": ", in the target's own unit"}


def words(config: Config) -> TaskWords:
    """Return its words."""
    network = network_of(config)
    title = f"{network.kind} network {network.hidden} on {columns_of(config).target}"
    loaded = "the network is loaded afresh and exported, beside naive forecasts"
    return TaskWords(title, "network", loaded, "naive", "network", "per row", "rows", _SCALED)


def usage(run: RunFolder, config: Config) -> str:
    """Return Python that loads the exported network."""
    return (
        "import torch\n\n"
        f"program = torch.export.load({str(run.artifact / PROGRAM)!r}).module()\n"
        "predicted = program(numbers, codes)  # float64 [rows, columns], NaN where missing; int64 [rows, categories]; see metadata.json"
    )


def measured(evaluation: Json) -> list[tuple[str, str]]:
    """Return what was measured of a network: metrics, naive forecasts, trades by rule, exports."""
    if "baselines" not in evaluation:
        return []
    loss, unit = evaluation["loss"], "" if evaluation["loss"] == "cross-entropy" else _SCALED
    if evaluation.get("class_weights"):
        unit = ", weighted by class"
    rows = [(f"{loss} of the network{unit}", f"{evaluation['eval_tuned']:.5g}")]
    for name, value in evaluation["baselines"].items():
        rows.append((f"{loss} of the naive forecast {name.replace('_', ' ')}{unit}", f"{value:.5g}"))
    for name, value in evaluation["metrics"].items():
        if isinstance(value, float):
            rows.append((f"{name.replace('_', ' ')} of the network{_OWN_UNIT.get(name, '')}", f"{value:.6g}"))
    for name, rule in (evaluation.get("trades") or {"rules": {}})["rules"].items():
        net = rule["net_return"]
        reach = f" ({net['interval'][0]:.2e} to {net['interval'][1]:.2e})" if net["interval"] else ""
        rows.append((f"net return a trade, {name.replace('_', ' ')}", f"{net['mean']:.2e}{reach}, {rule['trades']:,} trades"))
    for name, export in evaluation.get("exports", {}).items():
        made = f"{export['file']}, compared: differs by {export['largest_difference']:.1e}" if "file" in export else ""
        rows.append((f"exported {name}", made or f"not made: {export['left_out']}"))
    return rows
