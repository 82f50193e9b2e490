"""Write the model of a GGUF file as a folder in Hugging Face layout, through transformers. Chooses no place and keeps nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import transformers

from holdfast.base.errors import BLOCKED, DONE, Stop
from holdfast.base.files import write_json
from holdfast.base.versions import install
from holdfast.base_model.gguf_file import REFUSED

_AGAIN = "download it again"
_FOLDER = "give the model's folder in Hugging Face layout"


def widen(file: Path, folder: Path) -> int:
    """Write config, weights and tokenizer of `file` to `folder`; where that cannot be, the reason."""
    try:
        dtype = _read(file)
        _write(file, folder, dtype)
    except Stop as stop:
        write_json(folder / REFUSED, {"message": stop.message, "hint": stop.hint})
        return BLOCKED
    return DONE


def _read(file: Path) -> torch.dtype:
    """Choose the dtype its weights are widened to: their own in 16 or 32 bits, else bf16. Raises Stop(1) for a torn file."""
    try:
        import gguf
    except ImportError:
        text = f"{file} is a GGUF file, and the package gguf that reads it is not installed"
        raise Stop(BLOCKED, text, install("ship")) from None
    size = file.stat().st_size
    try:
        reader = gguf.GGUFReader(file)
    except (ValueError, TypeError, LookupError, ArithmeticError, MemoryError, OSError) as error:  # by where the file ends
        raise Stop(BLOCKED, f"{file} is torn: its {size:,} bytes are not all that it describes ({_short(error)})", _AGAIN) from None
    parts = reader.fields.get("split.count")
    if parts is not None and int(parts.contents()) > 1:
        text = f"{file} is one of {int(parts.contents())} parts of a model"
        raise Stop(BLOCKED, text, "join them: llama-gguf-split --merge FIRST-PART OUT.gguf")
    whole = sum(math.prod(map(int, tensor.shape)) for tensor in reader.tensors)
    if not whole:
        raise Stop(BLOCKED, f"{file} holds no weights", _FOLDER)
    kinds = {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1}
    return torch.float32 if kinds == {"F32"} else torch.float16 if kinds <= {"F16", "F32"} else torch.bfloat16


def _write(file: Path, folder: Path, dtype: torch.dtype) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    given: dict[str, Any] = {"gguf_file": file.name}
    config_of = getattr(transformers, "GgufConfig", None)  # newer ones keep the blocks packed unless told
    widely = {} if config_of is None else {"quantization_config": config_of(dequantize=True)}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **given)
        model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, dtype=dtype, **given, **widely)
    except (ValueError, KeyError, NotImplementedError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        text = f"transformers {transformers.__version__} cannot widen {file}: {_short(error)}"
        raise Stop(BLOCKED, text, _FOLDER) from None
    plain = type(model)(_config(model.config))
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    broken = next((name for name, values in plain.named_parameters() if not bool(torch.isfinite(values).all())), None)
    if broken:
        raise Stop(BLOCKED, f"{file}: {broken} has values that are not finite", _AGAIN)
    if model.generation_config is not None:
        plain.generation_config = model.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _config(config: Any) -> Any:
    """Return the model's configuration without the mark that its weights are packed."""
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
