"""`import simulated_card`, before torch: a torch built for the CPU gets a CUDA device made of main memory (card.cpp).

What it is follows from SIMULATED_CARD, JSON that card.py writes. It stands in for torch.cuda's Python half; it takes no time to compute
and has no streams beside the one whose copies can be slowed.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import types
from typing import Any

_OPTIONS: dict[str, Any] = json.loads(os.environ["SIMULATED_CARD"])
_LIBRARY = ctypes.CDLL(_OPTIONS["library"], mode=ctypes.RTLD_GLOBAL)  # its hooks have to be there when torch looks for them
_NUMBERS = ("now", "peak", "reserved", "free", "ooms", "syncs", "blocking", "pageable", "launches", "races")
for _name in _NUMBERS:
    getattr(_LIBRARY, f"card_{_name}").restype = ctypes.c_int64
_LIBRARY.card_total.argtypes = _LIBRARY.card_limit.argtypes = [ctypes.c_int64]
_LIBRARY.card_speed.argtypes = [ctypes.c_double]
_LIBRARY.card_ledger.argtypes = [ctypes.c_char_p, ctypes.c_double]
_LIBRARY.card_pin.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
_LIBRARY.card_unpin.argtypes = [ctypes.c_uint64]
_LIBRARY.card_resize.argtypes = [ctypes.c_uint64, ctypes.c_uint64]

import torch  # noqa: E402

if _OPTIONS.get("bitsandbytes"):
    import simulated_bitsandbytes  # noqa: F401
else:
    sys.modules.setdefault("bitsandbytes", None)  # type: ignore[arg-type]  # it would look for the card's driver when PEFT imports it

TOTAL = int(_OPTIONS["total"])


def now() -> int:
    """Bytes of the device that are taken by this process."""
    return int(_LIBRARY.card_now())


def peak() -> int:
    """The most there were since the start or `reset_peak`."""
    return int(_LIBRARY.card_peak())


def reset_peak() -> None:
    _LIBRARY.card_reset_peak()


def ooms() -> int:
    """Allocations that were refused."""
    return int(_LIBRARY.card_ooms())


def syncs() -> int:
    """How often the host waited for the device."""
    return int(_LIBRARY.card_syncs())


def blocking() -> int:
    """Copies between host and device that the host waited for."""
    return int(_LIBRARY.card_blocking())


def pageable() -> int:
    """Copies between the device and host memory that is not pinned."""
    return int(_LIBRARY.card_pageable())


def launches() -> int:
    """Operations and copies on the device."""
    return int(_LIBRARY.card_launches())


def races() -> int:
    """Pinned memory that the host changed while a copy to the device was under way; counted at synchronisations."""
    return int(_LIBRARY.card_races())


def limit(size: int) -> None:
    """What the device really gives, in bytes, below what it says it has."""
    _LIBRARY.card_limit(size)


def bytes_per_s(speed: float) -> None:
    """How fast copies to the host are on a side stream; 0: they take no time."""
    _LIBRARY.card_speed(speed)


def fail(message: str) -> None:
    """Plant a failure: the next synchronisation raises torch.AcceleratorError, and so does every call from then on."""
    _LIBRARY.card_fail(message.encode())


def synchronize(_device: object = None) -> None:
    """As torch.cuda.synchronize."""
    message = ctypes.create_string_buffer(4096)
    if _LIBRARY.card_synchronise(message, len(message)):
        raise getattr(torch, "AcceleratorError", RuntimeError)(message.value.decode())


class Stream:
    """The one stream there is, or beside it one whose copies to the host are slow."""

    def __init__(self, *_: object, side: bool = True, **__: object) -> None:
        self.side = side

    def wait_stream(self, _other: Stream) -> None: ...
    def wait_event(self, _event: Event) -> None: ...
    def query(self) -> bool:
        return True

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def synchronize(self) -> None:
        synchronize()


class Event:
    """What was under way when it was recorded has arrived with the next synchronisation."""

    recorded: int | None = None  # synchronisations until then

    def __init__(self, *_: object, **__: object) -> None: ...
    def record(self, _stream: Stream | None = None) -> None:
        self.recorded = syncs()

    def wait(self, _stream: Stream | None = None) -> None: ...
    def query(self) -> bool:
        return self.recorded is None or syncs() > self.recorded

    def synchronize(self) -> None:
        synchronize()

    def elapsed_time(self, _other: Event) -> float:
        return 0.0


class _Inside:
    """`with torch.cuda.stream(side)`: copies to the host take as long as they were told to."""

    def __init__(self, stream: Stream | None) -> None:
        self.side = stream is not None and stream.side

    def __enter__(self) -> None:
        _LIBRARY.card_side(int(self.side))

    def __exit__(self, *_: object) -> None:
        _LIBRARY.card_side(0)


class _OnDevice:
    """`with torch.cuda.device(index)`."""

    def __init__(self, device: Any) -> None:
        self.index = torch.device(device).index or 0 if not isinstance(device, int) else device

    def __enter__(self) -> None:
        self.before = _LIBRARY.card_current()
        _LIBRARY.card_set_current(self.index)

    def __exit__(self, *_: object) -> None:
        _LIBRARY.card_set_current(self.before)


class _Runtime:
    """torch.cuda.cudart(): host memory that is made known to the driver counts as pinned."""

    @staticmethod
    def cudaHostRegister(place: int, size: int, _flags: int) -> int:
        _LIBRARY.card_pin(place, size)
        return 0

    @staticmethod
    def cudaHostUnregister(place: int) -> int:
        return int(_LIBRARY.card_unpin(place))


def _properties(_device: object = 0) -> types.SimpleNamespace:
    major, minor = _OPTIONS["arch"]
    hip = _OPTIONS.get("hip")
    facts = {"name": "Simulated Radeon", "major": 11, "minor": 0} if hip else {"name": "Simulated", "major": major, "minor": minor}
    more = {"is_integrated": bool(_OPTIONS.get("integrated")), "multi_processor_count": 1, "gcnArchName": hip or ""}
    return types.SimpleNamespace(total_memory=TOTAL, L2_cache_size=1 << 20, warp_size=32, **facts, **more)


_resize = torch.UntypedStorage.resize_


def _resized(storage: Any, size: int) -> Any:
    """As UntypedStorage.resize_."""
    if storage.device.type != "cuda":
        return _resize(storage, size)
    if _LIBRARY.card_resize(storage._cdata, size):
        raise torch.cuda.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size} bytes. GPU 0 has a total capacity of {TOTAL} bytes"
        )
    return storage


torch.UntypedStorage.resize_ = _resized  # type: ignore[method-assign]


def _memory_stats(_device: object = 0) -> dict[str, int]:
    taken, kept = now(), int(_LIBRARY.card_reserved())
    stats = {"num_alloc_retries": ooms(), "num_ooms": ooms()}
    for kind, value, most in (("allocated_bytes", taken, peak()), ("reserved_bytes", kept, kept)):
        stats |= {f"{kind}.all.current": value, f"{kind}.all.peak": most}
    return stats


def _sync_mode(mode: int | str) -> None:
    _LIBRARY.card_strict({"default": 0, "warn": 1, "error": 2}.get(str(mode), mode))


_INSTEAD: dict[str, Any] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": lambda: int(_OPTIONS["devices"]),
    "current_device": lambda: int(_LIBRARY.card_current()),
    "set_device": lambda device: _LIBRARY.card_set_current(torch.device(device).index or 0 if not isinstance(device, int) else device),
    "device": _OnDevice,
    "is_bf16_supported": lambda including_emulation=True: True,
    "get_device_properties": _properties,
    "get_device_capability": lambda device=0: (_properties().major, _properties().minor),
    "get_device_name": lambda device=0: _properties().name,
    "memory_allocated": lambda device=0: now(),
    "max_memory_allocated": lambda device=0: peak(),
    "memory_reserved": lambda device=0: int(_LIBRARY.card_reserved()),
    "max_memory_reserved": lambda device=0: int(_LIBRARY.card_reserved()),
    "reset_peak_memory_stats": lambda device=0: reset_peak(),
    "memory_stats": _memory_stats,
    "mem_get_info": lambda device=0: (int(_LIBRARY.card_free()), TOTAL),
    "empty_cache": lambda: _LIBRARY.card_empty_cache(),
    "set_per_process_memory_fraction": lambda share, device=0: limit(int(share * TOTAL)),
    "synchronize": synchronize,
    "set_sync_debug_mode": _sync_mode,
    "manual_seed": lambda seed: None,
    "manual_seed_all": lambda seed: None,
    "Stream": Stream,
    "Event": Event,
    "stream": _Inside,
    "current_stream": lambda device=0: Stream(side=False),
    "default_stream": lambda device=0: Stream(side=False),
    "cudart": _Runtime,
    "_lazy_init": lambda: None,
}


_histc = torch.histc


def _counted(given: torch.Tensor, *how: Any, **named: Any) -> torch.Tensor:
    """Count as a card does, whose kernel takes whole numbers: the CPU's does not."""
    return _histc(given.float(), *how, **named).to(given.dtype)


def _put_in() -> None:
    for name, value in _INSTEAD.items():
        setattr(torch.cuda, name, value)
    torch.histc = _counted
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.version.cuda = "13.0"
    if _OPTIONS.get("hip"):
        torch.version.hip, torch.version.cuda = "6.4.43482", None
    _LIBRARY.card_total(TOTAL)
    _LIBRARY.card_limit(int(_OPTIONS.get("limit") or TOTAL))
    _LIBRARY.card_speed(float(_OPTIONS.get("bytes_per_s") or 0))
    _LIBRARY.card_devices(int(_OPTIONS["devices"]))
    if _OPTIONS.get("ledger"):
        _LIBRARY.card_ledger(str(_OPTIONS["ledger"]).encode(), float(_OPTIONS.get("release_s") or 0))
    if _OPTIONS.get("late"):
        _fail_late()


def _fail_late() -> None:
    """Let a fault that raises in the trainer be an error of the device, which the host hears of when it next waits for it."""
    from holdfast.trainer.common import job

    happen = job.happen

    def late(fault: Any) -> float:
        if fault.effect != "raise":
            return happen(fault)
        fail(fault.message or f"device-side assert triggered ({fault.name})")
        return 1.0

    job.happen = late


_put_in()
if int(_OPTIONS["devices"]) > 1:
    import simulated_nccl  # noqa: F401
