"""What a process computes first is right with several threads, too: MKL's first calls are made before it, on one element."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from holdfast.callback.first_calls import FUNCTIONS
from holdfast.trainer.jobs.torch_facts import mkl_version
from support.forked import EXEC

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
# MKL's own detection (disassembled from torch 2.13's libtorch_cpu.so), held open where another thread reads the CPU's number before it is
# translated: of an Intel CPU with AVX-512 that is 9, which with high accuracy names AVX2's kernel of low accuracy
HELD_OPEN = """
#include <unistd.h>
static volatile int kind = -1;
int mkl_vml_serv_cpu_detect(void) {
    if (!__sync_bool_compare_and_swap(&kind, -1, 9)) return kind;
    usleep(300000);
    return kind = 0;
}
"""
CALLS_TWICE = """
import torch
def differs():
    torch.set_num_threads(2)
    x = torch.linspace(0.01, 0.9, 1 << 14)
    return not torch.equal(x.cos(), x.cos())
"""
# one import of everything, then a fork for each way: torch has been imported in it and nothing computed
WAYS = """
import contextlib, importlib, io, json, os, sys
import transformers.trainer
from holdfast import guard, hf
from holdfast.trainer.common import device
from holdfast.trainer.jobs.probes import host

def injected():
    sys.path.insert(0, os.path.join(os.path.dirname(hf.__file__), "callback", "site"))
    import importlib.util
    place = os.path.join(sys.path[0], "sitecustomize.py")
    spec = importlib.util.spec_from_file_location("site_of_ours", place)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    del sys.modules["transformers.trainer"]
    import transformers.trainer

def probed():
    host.standard_probes = lambda folder: {}
    with contextlib.redirect_stdout(io.StringIO()):
        host.probe_functions(None, 1)

ways = {
    "nothing": lambda: None,
    "device": lambda: device.take_threads(2),
    "callback": hf.HoldfastCallback,
    "guard": guard.guard,
    "injected": injected,
    "probes": probed,
}
wrong = {}
for name, way in ways.items():
    child = os.fork()
    if child == 0:
        code = 2
        try:
            way()
            code = int(differs())
        finally:
            os._exit(code)
    wrong[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(wrong))
"""
UNASKED = """
from holdfast.trainer.tasks.text import proof
proof.refuse_unfit = lambda *_: None  # it would compute first
"""
PROVEN = """
import json
from types import SimpleNamespace
from holdfast.trainer.loop import loop
from holdfast.trainer.distributed.rank import ALONE
from support.architectures import ARCHITECTURES, task_of
config = ARCHITECTURES["llama"]()
config.head_dim = 128  # so that 40 tokens have more angles than one thread computes
task = task_of(config)
task.held, task.frozen = None, "fp32"
told = []
job = SimpleNamespace(event=lambda kind, **facts: told.append([kind, facts]), amend=lambda entry: told.append(["amended", entry.settings]))
torch.set_num_threads(2)
proven = loop._proven(SimpleNamespace(task=task, job=job), ALONE)
print(json.dumps([proven, told]))
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that holds the moment open; with it a first call in two threads is wrong each time."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler or platform.system() != "Linux" or mkl_version() is None:
        pytest.skip("needs a C compiler and a torch with MKL on Linux")
    folder = tmp_path_factory.mktemp("held")
    if " " in str(folder):
        pytest.skip(f"LD_PRELOAD takes no path like {folder}")
    (folder / "held.c").write_text(HELD_OPEN)
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", folder / "held.so", folder / "held.c"], check=True)
    return folder / "held.so"


def printed(script: str, **env: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE.parent), str(Path(__file__).parents[1])]), EXEC: "1"} | env
    done = subprocess.run([sys.executable, "-c", CALLS_TWICE + script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_the_functions_are_those_that_torch_takes_from_mkl() -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "cpu" / "vml.h"
    if not header.exists():
        pytest.skip("this torch came without its headers")
    of_torch = re.findall(r"^IMPLEMENT_VML_MKL\((\w+),", header.read_text(), re.MULTILINE)
    assert set(of_torch) == set(FUNCTIONS) and len(FUNCTIONS) == len(set(FUNCTIONS))


def test_a_build_that_cannot_say_what_it_is_made_of_has_an_unknown_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise RuntimeError("Cannot query detailed CUDA version without ATen_cuda library.")

    monkeypatch.setattr(torch.__config__, "show", refuse)
    assert mkl_version() is None


def test_no_first_call_is_made_in_several_threads(held: Path) -> None:
    wrong = json.loads(printed(WAYS, LD_PRELOAD=str(held)))
    assert wrong.pop("nothing") == 1, "the moment was not held open, so nothing was tested"
    assert not any(wrong.values()), wrong


def test_one_place_sets_the_threads() -> None:
    """So each process that computes has made its first calls; parts of a step divide what it was given."""
    setting = {str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if "set_num_threads(" in file.read_text(encoding="utf-8")}
    assert setting == {"trainer/common/device.py", "trainer/parts/threads.py"}


def test_a_proof_that_does_not_fail_again_changes_nothing(held: Path) -> None:
    proven, told = json.loads(printed(f"{UNASKED}{PROVEN}", LD_PRELOAD=str(held)))
    assert proven, told
    ((kind, facts),) = told
    assert kind == "computes_differently" and facts["again"] == "" and "the output layer is no plain product" in facts["first"]


def test_a_model_is_not_refused_for_what_a_process_computes_first(held: Path) -> None:
    assert json.loads(printed(PROVEN, LD_PRELOAD=str(held))) == [True, []]


@pytest.mark.long
def test_no_fresh_process_differs_from_its_own_second_call() -> None:
    """The race as it comes. Without the first calls an Intel CPU with AVX-512 fails this: there one process in eight is wrong."""
    script = "from holdfast.trainer.common.device import take_threads\ntake_threads(2)\nprint(differs())"
    assert [printed(script) for _ in range(200)] == ["False"] * 200
