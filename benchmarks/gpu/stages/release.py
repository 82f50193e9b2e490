"""A process that is killed in the middle of a kernel: when the card's memory is back."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from stages.common import Place, median, wait_until

_BUSY = """
import sys, torch
share = float(sys.argv[1])
device = "cuda" if torch.cuda.is_available() else "cpu"
free = torch.cuda.mem_get_info()[0] if device == "cuda" else 1 << 30
held = torch.empty(int(free * share), dtype=torch.uint8, device=device)
side = 8192 if share > 0.1 else 64
a = torch.randn(side, side, device=device)
print(len(held), flush=True)
while True:
    for _ in range(200):
        a = torch.nn.functional.normalize(a @ a)
"""


def run(place: Place) -> None:
    import torch

    if not torch.cuda.is_available():
        place.answer("back-ms", None, "no card")
        place.answer("all-back", None, "no card")
        return
    torch.zeros(1, device="cuda")
    took, missing = [], 0
    for _ in range(2 if place.smoke else 5):
        before = torch.cuda.mem_get_info()[0]
        child = subprocess.Popen([sys.executable, "-c", _BUSY, "0.01" if place.smoke else "0.8"], stdout=subprocess.PIPE)
        assert child.stdout is not None
        held = int(child.stdout.readline())
        time.sleep(0.3 if place.smoke else 1.5)
        child.send_signal(signal.SIGKILL)
        killed = time.perf_counter()
        child.wait()
        reaped = time.perf_counter()
        back = wait_until(lambda before=before: torch.cuda.mem_get_info()[0] >= before - (64 << 20), 30)
        took.append(1e3 * (time.perf_counter() - killed))
        missing += not back
        print(f"{held / 1e9:.1f} GB held; dead after {1e3 * (reaped - killed):.0f} ms, memory back after {took[-1]:.0f} ms", flush=True)
    place.answer("back-ms", round(median(took), 1), f"worst {max(took):.0f} ms of {len(took)} kills")
    place.answer("all-back", missing, "kills after which memory was missing for 30 s")
