"""The machine: what the doctor says of it, its probes, what torch has for this card, and the report to keep."""

from __future__ import annotations

import json
import subprocess
from inspect import signature

from stages.common import Place


def run(place: Place) -> None:
    import torch

    on_card = torch.cuda.is_available()
    card = torch.cuda.get_device_properties(0) if on_card else None
    place.answer("card", f"{card.name}, {card.total_memory / 2**30:.1f} GiB" if card else None, f"torch {torch.__version__}")
    print(_output(["nvidia-smi"]), _output(["nvidia-smi", "-q", "-d", "CLOCK,POWER,ECC"]))
    plain = place.without_card()  # probes are for real devices: on the simulated one they take minutes
    found = place.holdfast("doctor", "--json", timeout_s=300, env=plain)
    place.kept("doctor.json").write_text(found.stdout)
    answer = json.loads(found.stdout)
    told = "; ".join(f"{one['severity']} {one['id']}: {one['message']}" for one in answer["findings"])
    place.answer("doctor", answer["verdict"], told[:1500])
    probes = answer["machine"].get("probes", {})
    wrong = {name: probe for name, probe in probes.items() if probe.get("outcome") not in ("ok", "absent")}
    place.answer("probes", sorted(wrong), json.dumps(wrong)[:1500])
    seen = len((answer["machine"]["torch"] or {}).get("devices") or [])
    place.answer("seen", None if place.smoke else seen, "asked without the simulated card" if place.smoke else "")
    report = place.holdfast("doctor", "--report", place.kept("doctor-report.md"), timeout_s=300, env=plain)
    place.answer("report", place.kept("doctor-report.md").exists(), f"exit code {report.returncode}")
    place.answer("varlen-kernel", _varlen(), "torch.nn.attention.varlen")


def _varlen() -> bool:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"window_size", "enable_gqa", "scale"} <= set(signature(varlen_attn).parameters)


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
