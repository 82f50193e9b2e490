"""How near the project's own kernels come to the least bytes they have to move, what a launch costs the host, how fast 4 bits widen."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from stages.common import Place
from stages.training import synchronise

SHAPES = (("0.5B", 896, 3, 16), ("7B", 3584, 3, 16), ("7B", 3584, 3, 64), ("7B down", 18944, 1, 16))  # features, layers together, rank
TOKENS = (1024, 8192)
FLUSHED = 64 << 20  # numbers written between two measurements, more than the L2 cache holds


def run(place: Place) -> None:
    import torch

    if not torch.cuda.is_available() or place.smoke:
        for question in ("copy-gbs", "project", "spread", "gather", "slopes", "host-us", "nf4"):
            place.answer(question, None, "no card")
        return
    rate = _copy_rate()
    place.answer("copy-gbs", round(rate), "GB/s of a copy of 1 GiB, read and written")
    _lora(place, rate)
    _loss(place, rate)
    _host(place)
    _four_bits(place, rate)


def _copy_rate() -> float:
    import torch

    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / _milliseconds(lambda: target.copy_(source)) / 1e6


def _milliseconds(work: Callable[[], Any], times: int = 10) -> float:
    """Median of `times` runs, each with a cold L2 cache."""
    import torch

    flush = torch.empty(FLUSHED, dtype=torch.float32, device="cuda")
    for _ in range(3):
        work()
    took = []
    for _ in range(times):
        flush.zero_()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        work()
        ended.record()
        torch.cuda.synchronize()
        took.append(began.elapsed_time(ended))
    return statistics.median(took)


def _lora(place: Place, rate: float) -> None:
    import torch

    from holdfast.trainer.model.kernels import ops

    told: dict[str, list[tuple[float, str]]] = {"project": [], "spread": [], "gather": []}
    for name, features, layers, rank in SHAPES:
        for tokens in TOKENS:
            for dropped in (0, 3277):
                x = torch.randn(tokens, features, device="cuda", dtype=torch.bfloat16)
                a = [torch.randn(rank, features, device="cuda") for _ in range(layers)]
                drawn = [torch.randint(-(2**31), 2**31 - 1, size, device="cuda").int() for size in ((tokens,), (layers, 2))]
                tail = (*(drawn if dropped else (None, None)), 0, dropped, 1.0)
                wide = features <= 4096
                h, _ = ops.project(x, a, *tail, wide)
                dh = torch.randn_like(h)
                work: dict[str, tuple[Callable[[], Any], int]] = {
                    "project": (
                        lambda x=x, a=a, tail=tail, wide=wide: ops.project(x, a, *tail, wide),
                        x.nbytes * (2 if wide else 1) + 2 * h.nbytes,
                    ),
                    "spread": (lambda a=a, dh=dh, tail=tail: ops.spread(dh, a, *tail), x.nbytes + dh.nbytes),
                    "gather": (lambda x=x, dh=dh, tail=tail, layers=layers: ops.gather(x, dh, layers, *tail), x.nbytes + dh.nbytes),
                }
                for kernel, (one, size) in work.items():
                    took = _milliseconds(one)
                    share = size / took / 1e6 / rate
                    told[kernel].append(
                        (share, f"{name} r={rank} x{layers} {tokens}{' dropout' if dropped else ''}: {took:.3f} ms {share:.0%}")
                    )
    for kernel, found in told.items():
        place.answer(kernel, round(statistics.median(share for share, _ in found), 3), "; ".join(one for _, one in found))


def _loss(place: Place, rate: float) -> None:
    import torch

    from holdfast.trainer.model.kernels import ops

    logits = torch.randn(880, 152064, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(152064, (880,), device="cuda")
    losses, right = torch.empty(880, device="cuda"), torch.empty(880, dtype=torch.bool, device="cuda")
    took = _milliseconds(lambda: ops.slopes(logits, labels, losses, right, 1.0, True))
    place.answer("slopes", round(3 * logits.nbytes / took / 1e6 / rate, 3), f"{took:.3f} ms for 880 rows of 152,064")


def _host(place: Place) -> None:
    import torch

    from holdfast.trainer.model.kernels import ops

    x = torch.randn(1024, 896, device="cuda", dtype=torch.bfloat16)
    a = [torch.randn(16, 896, device="cuda") for _ in range(3)]
    dh, square = torch.randn(1024, 48, device="cuda", dtype=torch.bfloat16), torch.randn(896, 896, device="cuda", dtype=torch.bfloat16)
    tail = (None, None, 0, 0, 1.0)
    asked: dict[str, Callable[[], Any]] = {
        "project": lambda: ops.project(x, a, *tail, True),
        "spread": lambda: ops.spread(dh, a, *tail),
        "gather": lambda: ops.gather(x, dh, 3, *tail),
        "torch.mm": lambda: x @ square,
        "add_": lambda: a[0].add_(1.0),
    }
    found = {}
    for name, work in asked.items():
        for _ in range(5):
            work()
        synchronise()
        began = time.perf_counter()
        for _ in range(200):
            work()
        found[name] = round(1e6 * (time.perf_counter() - began) / 200, 1)
        synchronise()
    place.answer("host-us", found["project"], f"microseconds of the host a call: {found}")


def _four_bits(place: Place, rate: float) -> None:
    import torch

    try:
        import bitsandbytes
    except ImportError as error:
        place.answer("nf4", None, str(error))
        return
    told, shares = [], []
    for out, features in ((3584, 3584), (18944, 3584)):
        weights = torch.randn(out, features, device="cuda")
        for kind in (torch.float32, torch.bfloat16):
            packed, state = bitsandbytes.functional.quantize_4bit(weights.to(kind), blocksize=64, quant_type="nf4")
            took = _milliseconds(
                lambda packed=packed, state=state: bitsandbytes.functional.dequantize_4bit(packed, state).to(torch.bfloat16)
            )
            shares.append(out * features * 2.5 / took / 1e6 / rate)
            told.append(f"{out}x{features} by a state in {kind}: {took:.3f} ms {shares[-1]:.0%}")
    place.answer("nf4", round(shares[-1], 3), "; ".join(told))
