"""holdfast makes fine-tuning runs finish. Importing this loads nothing: neither torch nor any other package.

The names below are its interface for Python, and are imported when they are asked for; `holdfast.hf` and `holdfast.guard` are for
programs that train with other libraries. Everything else may change without notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.api.doctor import Checkup, doctor
    from holdfast.api.run import Run
    from holdfast.api.train import train
    from holdfast.base.errors import Stop
    from holdfast.base.versions import __version__ as __version__
    from holdfast.run.types import Finding

__all__ = ["Checkup", "Finding", "Run", "Stop", "doctor", "train"]

_PLACES = {
    "__version__": "holdfast.base.versions",
    "Checkup": "holdfast.api.doctor",
    "Finding": "holdfast.run.types",
    "Run": "holdfast.api.run",
    "Stop": "holdfast.base.errors",
    "doctor": "holdfast.api.doctor",
    "train": "holdfast.api.train",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
