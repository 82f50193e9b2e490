"""For trainers of confidence.py's runs: a fault that raises breaks the card's context for real, by a kernel of its own.

HOLDFAST_CONFIDENCE_BREAKS: assert (an index out of bounds, seen on the card), illegal (a Triton kernel that writes to nowhere), or gone
(from the second attempt on there is no card).
"""

import contextlib
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _break_the_card() -> None:
    import torch

    if os.environ["HOLDFAST_CONFIDENCE_BREAKS"] == "illegal":
        sys.path.append(str(_HERE))
        from nowhere import write

        write()
    else:
        torch.arange(4, device="cuda")[torch.full((4,), 99, device="cuda")]


def _install() -> None:
    from holdfast.trainer.common import job

    happen = job.happen

    def late(fault):
        if fault.effect != "raise":
            return happen(fault)
        _break_the_card()
        return 1.0

    job.happen = late


class _Finder:
    """Puts it in once the trainer's module is imported, which is before torch."""

    def find_spec(self, name, path=None, target=None):
        if name != "holdfast.trainer.step.step":  # imported after job, by every trainer and every trial
            return
        sys.meta_path.remove(self)
        _install()
        return


def _hide_the_card() -> None:
    job, *rest = sys.orig_argv[sys.orig_argv.index("holdfast.trainer") + 1 :]
    if job == "train" and int(rest[1]) > 1:
        os.environ |= dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "-1")


if os.environ.get("HOLDFAST_CONFIDENCE_BREAKS") and "holdfast.trainer" in sys.orig_argv and "SIMULATED_CARD" not in os.environ:
    if os.environ["HOLDFAST_CONFIDENCE_BREAKS"] == "gone":
        _hide_the_card()
    else:
        sys.meta_path.insert(0, _Finder())
sys.path[:] = [path for path in sys.path if Path(path).resolve() != _HERE]
sys.modules.pop("sitecustomize", None)
with contextlib.suppress(ImportError):
    import sitecustomize  # noqa: F401  # another one behind ours
