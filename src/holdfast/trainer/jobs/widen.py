"""Write the model of a GGUF file as a folder in Hugging Face layout, through transformers. Chooses no place and keeps nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from holdfast.base.errors import BLOCKED, DONE, Stop
from holdfast.base.files import write_json
from holdfast.base_model.gguf_file import LOAD_AGAIN, REFUSED, WHOLE_FOLDER, read_tensors

_F32, _F16 = 0, 1  # numbers that GGUF has for types


def widen(file: Path, folder: Path) -> int:
    """Write config, weights and tokenizer of `file` to `folder`; where that cannot be, the reason."""
    try:
        _write(file, folder, _dtype(file))
    except Stop as stop:
        write_json(folder / REFUSED, {"message": stop.message, "hint": stop.hint})
        return BLOCKED
    return DONE


def _dtype(file: Path) -> torch.dtype:
    """Choose the dtype its weights are widened to: their own in 16 or 32 bits, else bf16."""
    kinds = {tensor.kind for tensor in read_tensors(file)[0] if len(tensor.shape) > 1}
    return torch.float32 if kinds == {_F32} else torch.float16 if kinds <= {_F16, _F32} else torch.bfloat16


def _write(file: Path, folder: Path, dtype: torch.dtype) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    given: dict[str, Any] = {"gguf_file": file.name}
    config_of = getattr(transformers, "GgufConfig", None)  # newer ones keep the blocks packed unless told
    widely = {} if config_of is None else {"quantization_config": config_of(dequantize=True)}
    what = "widen"
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, dtype=dtype, **given, **widely)
        what = "read the vocabulary of"
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **given)
    except (ValueError, LookupError, NotImplementedError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        raise _refused(what, file, error) from None
    except Exception as error:
        if type(error) is not Exception:  # what tokenizers raises
            raise
        raise _refused(what, file, error) from None
    plain = type(model)(_config(model.config))
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    broken = next((name for name, values in plain.named_parameters() if not bool(torch.isfinite(values).all())), None)
    if broken:
        raise Stop(BLOCKED, f"{file}: {broken} has values that are not finite", LOAD_AGAIN)
    if model.generation_config is not None:
        plain.generation_config = model.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _refused(what: str, file: Path, error: Exception) -> Stop:
    """Make the refusal of a file that transformers cannot take."""
    return Stop(BLOCKED, f"transformers {transformers.__version__} cannot {what} {file}: {_short(error)}", WHOLE_FOLDER)


def _config(config: Any) -> Any:
    """Return the model's configuration without the mark that its weights are packed."""
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
