"""`python memory_on_card.py` with the simulated card: memory of a killed process comes back late, and is waited for."""

from __future__ import annotations

import subprocess
import sys
import threading

import simulated_card  # noqa: F401  (before torch)
import torch

from holdfast.trainer.common.device import free_bytes, wait_for_memory

CARD = torch.device("cuda:0")


def hold() -> None:
    block = torch.empty(900 << 20, dtype=torch.uint8, device=CARD)
    print(len(block), flush=True)
    threading.Event().wait()


def main() -> None:
    other = subprocess.Popen([sys.executable, __file__, "hold"], stdout=subprocess.PIPE)
    assert other.stdout is not None and other.stdout.readline()
    waited, missing = wait_for_memory(512 << 20, lambda: free_bytes(CARD), patience_s=0.0)
    assert missing == (512 << 20) - free_bytes(CARD) > 0, "it is told how much is missing"
    looks = 0

    def free() -> int:
        nonlocal looks
        looks += 1
        if looks == 2:
            other.kill()
            other.wait()
        return free_bytes(CARD)

    waited, missing = wait_for_memory(512 << 20, free, patience_s=600.0)
    assert missing == 0 and waited > 0 and looks > 2, "the driver gives it back after the process is gone"
    torch.empty(512 << 20, dtype=torch.uint8, device=CARD)
    assert wait_for_memory(900 << 20, lambda: free_bytes(CARD), patience_s=0.0)[1] == 0, "what our own allocator keeps is ours"
    print("all of it")


if __name__ == "__main__":
    hold() if "hold" in sys.argv else main()
