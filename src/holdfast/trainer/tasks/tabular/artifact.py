"""The finished network as files: loaded from its folder, with its scaling inside, exported, loaded afresh and compared. Trains nothing."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from holdfast.base.errors import error_message
from holdfast.base.files import Json, read_json, write_bytes, write_json
from holdfast.config.config import Config
from holdfast.config.table import columns_of, network_of
from holdfast.run.artifact import CONFIGS, ONNX, PROGRAM
from holdfast.run.artifact import WEIGHTS as WEIGHTS_OF
from holdfast.tables.table.form import Form
from holdfast.trainer.model.layers.dropout import StepContext
from holdfast.trainer.tasks.tabular.losses import RowLoss, combined
from holdfast.trainer.tasks.tabular.network import new_network

WEIGHTS, METADATA = WEIGHTS_OF["network"], CONFIGS["network"]
_SAME = 1e-4  # of the largest output: another order of additions


class Predictor(nn.Module):
    """From raw columns to predictions: numbers [rows, columns] in float64 with NaN where one is missing, codes [rows, categories].

    Gives probabilities of the classes, or numbers in the target's own unit (each quantile, for loss quantile). [rows, outputs]
    """

    def __init__(self, network: nn.Module, form: Form, loss: str) -> None:
        super().__init__()
        self.network, self.loss = network, loss
        self.classes = bool(form.target.classes)
        self.register_buffer("means", torch.from_numpy(form.means))
        self.register_buffer("scales", torch.from_numpy(form.scales))
        self.register_buffer("told_missing", torch.tensor(form.indicators, dtype=torch.int64))
        self.mean, self.scale = form.target.mean, form.target.scale

    means: Tensor
    scales: Tensor
    told_missing: Tensor

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        missing = torch.isnan(numbers)
        scaled = torch.where(missing, torch.zeros_like(numbers), (numbers - self.means) / self.scales)
        inputs = torch.cat([scaled, missing.index_select(1, self.told_missing).to(numbers.dtype)], dim=1).float()
        found = combined(self.network(inputs, codes), self.loss)
        return found.exp() if self.classes else found * self.scale + self.mean


def load(folder: Path, config: Config, device: torch.device) -> tuple[nn.Module, Form, RowLoss]:
    """Build the network of an artifact's folder from its weights and metadata alone; return (network, form, loss)."""
    about = read_json(folder / METADATA) or {}
    form = Form.model_validate(about["form"])
    loss = RowLoss(columns_of(config), form.target, device)
    network = new_network(config, form, loss.outputs, StepContext(0))
    network.load_state_dict(load_file(folder / WEIGHTS))
    return network.to(device).eval(), form, loss


def export(folder: Path, config: Config, numbers: Tensor, codes: Tensor) -> Json:
    """Write the program and, where the packages are there, ONNX; each is loaded afresh and compared on these rows. On the CPU.

    What fails or differs is not left behind: {format: {file, sha256, largest_difference} or {left_out: why}}.
    """
    network, form, loss = load(folder, config, torch.device("cpu"))
    predictor = Predictor(network, form, loss.name).eval()
    with torch.no_grad():
        wanted = predictor(numbers, codes)
    found: Json = {}
    ways = {"program": (PROGRAM, _program, _run_program), "onnx": (ONNX, _onnx, _run_onnx)}
    for name in network_of(config).exports:
        file, write, run = ways[name]
        (folder / file).unlink(missing_ok=True)
        try:
            data = write(predictor, numbers, codes)
            difference = float((run(data, numbers, codes) - wanted).abs().max()) / max(1e-6, float(wanted.abs().max()))
            if not difference <= _SAME:
                raise ValueError(f"its outputs differ by {difference:.2g} of the largest")
        except _Absent as absent:
            found[name] = {"left_out": str(absent)}
        except Exception as error:  # noqa: BLE001  (another package's exporter may raise anything; it is told, and the artifact is whole without)
            found[name] = {"left_out": error_message(error)}
        else:
            write_bytes(folder / file, data)
            found[name] = {"file": file, "sha256": hashlib.sha256(data).hexdigest(), "largest_difference": difference}
    return found


def note(folder: Path, facts: Json) -> None:
    """Add facts to the metadata."""
    write_json(folder / METADATA, (read_json(folder / METADATA) or {}) | facts)


class _Absent(Exception):
    """A package that an export needs is not installed."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence logs and warnings within the context: exporters warn of their own internals."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _shapes() -> tuple[Any, ...]:
    rows = torch.export.Dim("rows", min=1)
    return ({0: rows}, {0: rows})


def _program(predictor: nn.Module, numbers: Tensor, codes: Tensor) -> bytes:
    out = io.BytesIO()
    with _quiet():
        torch.export.save(torch.export.export(predictor, (numbers, codes), dynamic_shapes=_shapes()), out)
    return out.getvalue()


def _run_program(data: bytes, numbers: Tensor, codes: Tensor) -> Tensor:
    with _quiet(), torch.no_grad():
        found: Tensor = torch.export.load(io.BytesIO(data)).module()(numbers, codes)
    return found


def _onnx(predictor: nn.Module, numbers: Tensor, codes: Tensor) -> bytes:
    if missing := [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]:
        raise _Absent(f"{' and '.join(missing)} not installed: pip install {' '.join(missing)}")
    with _quiet(), contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        program = torch.onnx.export(
            predictor, (numbers, codes), dynamo=True, dynamic_shapes=_shapes(), input_names=["numbers", "codes"], output_names=["predicted"]
        )
        assert program is not None
        program.save(Path(folder) / ONNX)
        return (Path(folder) / ONNX).read_bytes()


def _run_onnx(data: bytes, numbers: Tensor, codes: Tensor) -> Tensor:
    """Run an ONNX model by onnxruntime where it is installed, else by ONNX's reference implementation."""
    inputs = {"numbers": numbers.numpy(), "codes": codes.numpy()}
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        wanted = {one.name for one in session.get_inputs()}
        return torch.from_numpy(np.asarray(session.run(None, {name: value for name, value in inputs.items() if name in wanted})[0]))
    from onnx import load_from_string
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(load_from_string(data))
    wanted = set(evaluator.input_names)
    return torch.from_numpy(np.asarray(evaluator.run(None, {name: value for name, value in inputs.items() if name in wanted})[0]))
