"""`python interpreted.py ARCHITECTURE`: Liger's own kernels, interpreted on the CPU, give the loss and gradients of the model's code.

Its interpreter lacks three things these kernels use; they are put in here. Run by test_liger.py with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter

from holdfast.trainer.model.layers.liger import Liger
from holdfast.trainer.tasks.text.proof import kernels_differ
from support.architectures import ARCHITECTURES, task_of


@triton.jit
def rsqrt(x):  # type: ignore[no-untyped-def]
    return 1.0 / tl.sqrt(x)


@triton.jit
def tanh(x):  # type: ignore[no-untyped-def]
    return 2 * tl.sigmoid(2 * x) - 1


def main(name: str) -> None:
    convert = interpreter._implicit_cvt

    def with_floats(value: Any) -> Any:
        if isinstance(value, float):
            return tl.tensor(interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32), tl.float32)
        return convert(value)

    interpreter._implicit_cvt = with_floats
    importlib.import_module("liger_kernel.ops.rms_norm").rsqrt = rsqrt
    importlib.import_module("liger_kernel.ops.geglu").tanh = tanh
    task = task_of(ARCHITECTURES[name]())
    task.liger = Liger(task.base)
    assert len(task.liger.methods) > 4, "norms and activations of two layers"
    assert kernels_differ(task) == ({}, ""), kernels_differ(task)


if __name__ == "__main__":
    main(sys.argv[1])
