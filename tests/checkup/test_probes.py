"""Probes: a right machine passes, and a kernel that is wrong, crashes or hangs is a result, within its deadline."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import holdfast
from holdfast.checkup.examine import examine, verdict

RUN = (
    "import orjson\nfrom pathlib import Path\nfrom holdfast.trainer.jobs.probes.host import run_probes, standard_probes\n"
    "print(orjson.dumps({}).decode())"
)


def answer(code: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def ending_of(body: str, deadline_s: int) -> dict[str, Any]:
    """What becomes of a probe that does this."""
    asked = RUN.format(f"run_probes({{'x': probe}}, {deadline_s})")
    return dict(answer(f"import os, signal, time\ndef probe():\n    {body}\n" + asked)["x"])


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("body", "outcome", "detail"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "SIGSEGV"),
        ("os.abort()", "crashed", "SIGABRT"),
        ("os._exit(3)", "crashed", "exit code 3"),
        ("time.sleep(100)", "hung", "5 s"),
        ("[x for x in iter(int, 1)]", "hung", "5 s"),
        ("raise RuntimeError('HIP error: invalid device function')", "error", "invalid device function"),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); time.sleep(100)", "hung", "5 s"),
    ],
)
def test_a_probe_that_ends_badly_is_a_result(body: str, outcome: str, detail: str) -> None:
    found = ending_of(body, 5 if outcome == "hung" else 60)
    assert found["outcome"] == outcome
    assert detail in found["detail"]
    findings = examine({"probes": {"x": found}})
    assert verdict(findings) == "blocked"
    assert detail in findings[0].message


def test_a_good_machine_passes_and_is_asked_once(tmp_path: Path) -> None:
    cache = {"HOLDFAST_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "2"}
    first = json.loads(holdfast("doctor", "--json", cwd=tmp_path, env=cache).stdout)["machine"]["probes"]
    assert {name: probe["outcome"] for name, probe in first.items()} == {
        **dict.fromkeys(("matmul", "attention", "fused", "speed", "writing"), "ok"),
        **dict.fromkeys(("memory", "collective", "compiled"), "absent"),
        "quantised": "ok" if importlib.util.find_spec("bitsandbytes") else "absent",
    }
    assert set(first["matmul"]["errors"]) == {"float32", "bfloat16", "float16"}
    assert str(tmp_path) in first["writing"]["bytes_per_second"]
    again = json.loads(holdfast("doctor", "--json", cwd=tmp_path, env=cache).stdout)["machine"]["probes"]
    assert again == first, "the same rates to the byte: nothing was measured again"
    assert "probes" not in json.loads(holdfast("doctor", "--json", "--no-probe", cwd=tmp_path, env=cache).stdout)["machine"]


BROKEN = """
import torch
plain = torch.Tensor.__matmul__
def broken(a, b):
    result = plain(a, b)
    return result * {factor} if {where} else result
torch.Tensor.__matmul__ = broken
"""


@pytest.mark.parametrize(
    ("where", "factor", "told"),
    [
        ("a.dtype == torch.float32 and a.shape[0] == 8", "1.01", "float32 8x412x896"),
        ("a.dtype == torch.bfloat16 and a.shape[0] == 413", "float('nan')", "bfloat16 413x17x129: relative error inf"),
    ],
)
def test_a_product_that_is_wrong_at_one_shape_is_found(where: str, factor: str, told: str, tmp_path: Path) -> None:
    probes = f"{{'matmul': standard_probes(Path({str(tmp_path)!r}))['matmul']}}"
    found = answer(BROKEN.format(where=where, factor=factor) + RUN.format(f"run_probes({probes}, 60)"))["matmul"]
    assert found["outcome"] == "wrong"
    assert found["detail"].startswith(told)


def test_attention_that_is_wrong_with_a_mask_is_found(tmp_path: Path) -> None:
    code = (
        "from holdfast.trainer.jobs.probes import attention\n"
        "plain = attention.scaled_dot_product_attention\n"
        "def broken(q, k, v, **given):\n"
        "    return plain(q, k, v, **given) * (1.1 if 'attn_mask' in given and q.shape[2] == 192 else 1)\n"
        "attention.scaled_dot_product_attention = broken\n"
    )
    probes = f"{{'attention': standard_probes(Path({str(tmp_path)!r}))['attention']}}"
    found = answer(code + RUN.format(f"run_probes({probes}, 60)"))["attention"]
    assert found["outcome"] == "wrong"
    assert "float32, length 192, mask" in found["detail"]
    assert "length 128" not in found["detail"]


def test_the_probes_of_memory_speed_optimizer_and_ranks_see_what_is_there_and_what_is_wrong() -> None:
    found = answer(
        "import orjson, torch\nfrom holdfast.trainer.jobs.probes import collective, fused, memory, speed\ncpu = torch.device('cpu')\n"
        "seen = {'sum': collective.sum_over_ranks('gloo', 2)}\n"
        "import os, time\n"
        "def broken(backend, rank, ranks, store):\n"
        "    time.sleep(60 if rank == 2 else 0)\n"
        "    os.abort() if rank == 3 else None\n"
        "    return rank != 1\n"
        "collective._sum_is_right = broken\n"
        "seen['broken'] = {str(rank): how for rank, how in collective.sum_over_ranks('gloo', 4, 10).items()}\n"
        "seen |= {'taken': memory.take(cpu, 5 << 20, 1 << 20), 'speed': speed.probe(cpu), 'fused': fused.probe(cpu)}\n"
        "torch.optim.AdamW = lambda weights, lr, fused: torch.optim.SGD(weights, lr * (1 + fused))\n"
        "seen['other'] = fused.probe(cpu)\n"
        "print(orjson.dumps(seen).decode())"
    )
    assert found["taken"] == [5 << 20, True]
    assert found["speed"]["copy_bytes_per_second"] > 1 << 20 and found["speed"]["flops_per_second"]["float32"] > 1 << 20
    assert found["fused"]["outcome"] == "ok" and found["fused"]["error"] < 1e-5
    assert found["sum"] == {}
    assert found["broken"] == {"1": "gets a wrong sum", "2": "hangs (ended after 10 s)", "3": "is killed by SIGABRT"}
    assert found["other"]["outcome"] == "wrong"


def test_what_one_device_does_not_need_warns_and_does_not_block() -> None:
    probes = {"collective": {"outcome": "wrong", "detail": "copies between GPUs change what they copy: 0 to 1"}}
    findings = [finding for finding in examine({"probes": probes}) if finding.id == "probe-results"]
    assert [finding.severity for finding in findings] == ["warn"]
    assert "NCCL_P2P_DISABLE" in findings[0].fix


def test_compiled_code_that_is_wrong_is_seen() -> None:
    code = (
        "import orjson, torch\nfrom holdfast.trainer.jobs.probes import compiled\n"
        "torch.compile = lambda block: lambda *given: block(*given) * {}\n"
        "print(orjson.dumps(compiled.compiles(torch.device('cpu'))).decode())"
    )
    assert answer(code.format("1"))["outcome"] == "ok"
    found = answer(code.format("1.01"))
    assert found["outcome"] == "wrong" and "differs by 0.02" in found["detail"]


@pytest.mark.long
def test_this_machines_compiler_is_asked_for_real() -> None:
    code = "import orjson, torch\nfrom holdfast.trainer.jobs.probes import compiled\n"
    assert answer(code + "print(orjson.dumps(compiled.compiles(torch.device('cpu'))).decode())")["outcome"] == "ok"


def test_weights_of_four_bits_are_tried_where_bitsandbytes_is_installed() -> None:
    pytest.importorskip("bitsandbytes")
    code = (
        "import bitsandbytes, orjson, torch\nfrom holdfast.trainer.jobs.probes import quantised\ncpu = torch.device('cpu')\n"
        "right, product = quantised.probe(cpu), bitsandbytes.matmul_4bit\n"
        "def few_rows_wrong(rows, *rest, **named):\n"
        "    return product(rows, *rest, **named) * (1.1 if len(rows) <= 8 else 1)\n"
        "bitsandbytes.matmul_4bit = few_rows_wrong\n"
        "print(orjson.dumps({'right': right, 'wrong': quantised.probe(cpu)}).decode())"
    )
    found = answer(code)
    assert found["right"]["outcome"] == "ok"
    assert found["wrong"]["outcome"] == "wrong" and "product of 4 rows, blocks of 64" in found["wrong"]["detail"]
    assert "16 rows" not in found["wrong"]["detail"]
