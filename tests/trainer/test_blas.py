"""Which BLAS library the trainer asks torch for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import forked

_CHILD = """
import os
import torch
asked = []
torch.backends.cuda.preferred_blas_library = asked.append
from holdfast.config.settings import Settings
from holdfast.trainer.common.device import prepare_torch
for value in ("0", "1", None):
    if not os.fork():
        os.environ |= {"TORCH_BLAS_PREFER_HIPBLASLT": value} if value else {}
        prepare_torch(Settings(steps=1, samples=1, micro_batch_tokens=1, threads=1, deterministic=False))
        print(value, *asked, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def test_hipblaslt_is_switched_off_by_the_variable_whatever_torch_reads(tmp_path: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TORCH_BLAS_PREFER_HIPBLASLT"} | {forked.FORK: ""}
    (script := tmp_path / "child.py").write_text(_CHILD)
    child = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
    assert child.stdout.splitlines() == ["0 cublas", "1", "None"]
