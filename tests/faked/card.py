"""Import this before torch: afterwards `cuda:0` is a card as far as torch and holdfast can tell, under FakeTensorMode.

Each thing put in here is one that torch does in C++ where a fake cannot follow, or decides by a look at the real device.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from simulated.card import library

_IS_THERE = str(library()) in Path("/proc/self/maps").read_text()  # in a fork of a process that began with it
assert _IS_THERE or "torch" not in sys.modules, "the card has to be there before torch is"
ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL).card_devices(1)

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

torch.set_num_threads(1)
sys.modules.setdefault("bitsandbytes", None)  # type: ignore[arg-type]  # it would look for the card's driver when PEFT imports it
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: 0
torch.cuda.device = lambda device: nullcontext()
torch.cuda.get_device_capability = lambda device=None: (9, 0)
torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(multi_processor_count=132)
torch.cuda.is_bf16_supported = lambda including_emulation=True: True
torch.cuda.amp.common.amp_definitely_not_available = lambda: False
torch.cuda.manual_seed_all = lambda seed: None
FakeTensorMode.avoid_device_init = True


def _never(*_given: Any) -> Any:
    raise AssertionError("a fake runs no kernel")


_kernels = torch.library.Library("aten", "IMPL")
_kernels.impl("silu_backward", _never, "CUDA")  # without a kernel it would be traced as the operations it can be made of

_tensor = torch.tensor


def _by_way_of_the_host(data: Any, *given: Any, device: Any = None, **named: Any) -> Tensor:
    made = _tensor(data, *given, **named)
    return made if device is None or torch.device(device).type == "cpu" else made.to(device)


torch.tensor = _by_way_of_the_host


from holdfast.trainer.traced.stand_in import follow_fakes  # noqa: E402

follow_fakes()
