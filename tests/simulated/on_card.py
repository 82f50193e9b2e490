"""`python on_card.py` with the simulated card: each of its claims, one after the other. Run by test_card.py."""

from __future__ import annotations

import subprocess
import sys
import time

import simulated_card as card
import torch


def raised(kind: type[BaseException], work: object) -> str:
    try:
        work()  # type: ignore[operator]
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def numbers() -> None:
    layer = torch.nn.Linear(5, 3)
    x = torch.randn(4, 5)
    layer(x).square().sum().backward()
    wanted = layer.weight.grad.clone()
    layer.zero_grad()
    layer.to("cuda")(x.to("cuda")).square().sum().backward()
    assert layer.weight.grad.device == torch.device("cuda:0")
    assert torch.equal(layer.weight.grad.cpu(), wanted)


def devices() -> None:
    first, second = torch.ones(3, device="cuda"), torch.ones(3, device="cuda:1")
    assert "two devices, cuda:0 and cuda:1" in raised(RuntimeError, lambda: first + second)
    assert "two devices, cuda:0 and cpu" in raised(RuntimeError, lambda: first + torch.ones(3))
    assert "invalid device ordinal" in raised(RuntimeError, lambda: torch.ones(3, device="cuda:2"))


def views() -> None:
    x = torch.arange(6, device="cuda").view(2, 3)
    x.t()[2].zero_()
    x.split(1)[1].fill_(7)
    assert x.tolist() == [[0, 1, 0], [7, 7, 7]]


def memory() -> None:
    assert torch.isnan(torch.empty(64, device="cuda")).all(), "what was not written is NaN"
    before = card.now()
    block = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    assert card.now() - before == 1 << 20
    del block
    assert card.now() == before
    assert "Tried to allocate" in raised(torch.cuda.OutOfMemoryError, lambda: torch.empty(1 << 31, dtype=torch.uint8, device="cuda"))
    card.limit(before + 1000)
    raised(torch.cuda.OutOfMemoryError, lambda: torch.empty(4096, device="cuda"))
    assert card.ooms() == 2 == torch.cuda.memory_stats()["num_ooms"]
    card.limit(1 << 30)


def copies() -> None:
    x = torch.ones(64, device="cuda")
    pinned = torch.empty(64, pin_memory=True)
    blocked, pageable = card.blocking(), card.pageable()
    pinned.copy_(x, non_blocking=True)
    assert torch.isnan(pinned).all(), "it is under way"
    torch.cuda.synchronize()
    assert pinned.sum() == 64
    up = pinned.to("cuda", non_blocking=True)
    pinned[0] = 5
    assert (card.blocking(), card.pageable()) == (blocked, pageable)
    assert float(up[1]) == 1 and card.races() == 1, "the host changed what was being copied"
    torch.ones(4).to("cuda")
    assert (card.blocking(), card.pageable()) == (blocked + 1, pageable + 1)
    for waits_for_it in (lambda: x.nonzero(), lambda: x[x > 0], lambda: x.sum().item()):
        waits = card.syncs()
        waits_for_it()
        assert card.syncs() > waits
    waits = card.syncs()
    torch.softmax(x @ x.view(64, 1), 0)
    assert card.syncs() == waits
    block = torch.zeros(4096, dtype=torch.uint8)
    torch.cuda.cudart().cudaHostRegister(block.data_ptr(), 4096, 0)
    assert block.is_pinned()
    torch.cuda.cudart().cudaHostUnregister(block.data_ptr())
    assert not block.is_pinned()


def other_processes() -> None:
    free, _ = torch.cuda.mem_get_info()
    other = subprocess.Popen([sys.executable, __file__, "hold"], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline()
        assert free - torch.cuda.mem_get_info()[0] >= 1 << 28
        refusal = raised(torch.cuda.OutOfMemoryError, lambda: torch.empty(900 << 20, dtype=torch.uint8, device="cuda"))
        assert "is free" in refusal
    finally:
        other.kill()
        other.wait()
    assert free - torch.cuda.mem_get_info()[0] >= 1 << 28, "the driver has not got it back yet"
    while torch.cuda.mem_get_info()[0] < free:
        time.sleep(0.01)


def hold() -> None:
    block = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    print(len(block), flush=True)
    time.sleep(600)


def strictness() -> None:
    torch.cuda.set_sync_debug_mode("error")
    x = torch.ones(2, device="cuda")
    assert "synchronizing" in raised(RuntimeError, x.sum().item)
    torch.cuda.set_sync_debug_mode("default")


def late_errors() -> None:
    x = torch.ones(4, device="cuda")
    card.fail("device-side assert triggered")
    y = x * 2
    broken = getattr(torch, "AcceleratorError", RuntimeError)
    assert "CUDA error: device-side assert triggered" in raised(broken, y.sum().item)
    raised(broken, lambda: x + 1)
    raised(broken, torch.cuda.synchronize)


if __name__ == "__main__":
    if "hold" in sys.argv:
        hold()
    for claim in (numbers, devices, views, memory, copies, other_processes, strictness, late_errors):  # the last breaks the context
        claim()
    print("all of it")
