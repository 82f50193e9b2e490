"""Every model type of transformers' lists, made tiny: trained, killed, resumed, exported, and loaded the way each consumer loads it.

python benchmarks/models/matrix.py [TYPE ...] [--again] [--out FILE]

Types that FILE has already are passed over. scripts/models_page.py writes docs/reference/models.md from it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

import torch  # noqa: E402
import transformers  # noqa: E402
from peft import PeftModel  # noqa: E402
from safetensors import safe_open  # noqa: E402
from tiny_model import make, types  # noqa: E402

from holdfast.base_model.folder import read_model, stored_tensors  # noqa: E402
from holdfast.base_model.server_keys import HALF, ignored  # noqa: E402
from support import forked  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "models.json"
_VOCABULARY, _ROWS, _STEPS, _PATIENCE = 3584, 24, 3, 1200
_MOVES = 1e-4  # of the base's logits: less is a change that nobody will see
_ALIKE = 0.25  # of that change: a merge into bf16, which is read in fp32
_SAME = 0.01  # of that change: PEFT's own merge, rounded as the files are


def cell(kind: str) -> dict[str, Any]:
    """What became of one type. `verdict`: right, refused (before row one, with a sentence), not made (no tiny one), or wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        made = _apart(_make, kind, folder / "model")
        if "failed" in made:
            return {"verdict": "not made", "why": made["failed"]}
        found = made | _trained(folder)
        if "verdict" not in found:
            found |= _exported(folder) | _apart(_loaded, folder)
        return found if "verdict" in found else {"verdict": "wrong" if _wrong(found) else "right", "why": _wrong(found)} | found


def _wrong(found: dict[str, Any]) -> str:
    """What is not as it should be; empty where all is."""
    told = [sentence for sentence in (found.get("failed"), *(found.get(f"{to}_refused") for to in ("adapter", "merged"))) if sentence]
    if not found.get("resumed"):
        told.append("the kill was not resumed")
    if found.get("moves", 0.0) < _MOVES and not told:
        told.append(f"the adapter changes the logits of {found['class']} by {found.get('moves', 0.0):.1e}")
    if (other := found.get("moves_auto")) is not None and other < _MOVES and not found["half_told"]:
        told.append(f"the adapter changes the logits of AutoModelForCausalLM by {other:.1e}")
    if found.get("merged_differs", 0.0) > _ALIKE and found["merged_rounds"] > _SAME:
        told.append(f"the merged model's change differs from the adapter's by {found['merged_differs']:.2f} of it")
    if found.get("planned", found.get("trained")) != found.get("trained"):
        told.append(f"the plan says {found['planned']:,} trained parameters, the adapter has {found['trained']:,}")
    if found.get("unmoved"):
        told.append(f"{found['unmoved']} tensors of the adapter are as they began")
    if found.get("servers") and not found.get("servers_told"):
        told.append(f"not told: {found['servers'][0]}")
    return "; ".join(told)


def _make(kind: str, folder: Path) -> dict[str, Any]:
    own = make(kind, folder, read_model("tiny").folder, _VOCABULARY)
    return {"class": own.__name__}


def _trained(folder: Path) -> dict[str, Any]:
    rows = [{"instruction": f"Say {at * 37 % 101} again", "output": f"{at * 37 % 101} it is" + "!" * (at % 3)} for at in range(_ROWS)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = {
        "model": str(folder / "model"),
        "data": {"files": [str(folder / "rows.jsonl")], "held_out": 0.1},
        "adapter": {"r": 4, "alpha": 8},
        "train": {"steps": _STEPS, "effective_batch": 4, "lr": 1e-2, "warmup": 0.0, "max_tokens": 96, "threads": 1},
        "evaluate": {"generate": 0},
        "faults": [{"name": "kill", "when": {"step": 2, "attempt": 1}, "effect": "kill"}],
    }
    (folder / "c.yaml").write_text(json.dumps(tree))
    code, said = _holdfast("train", folder / "c.yaml", "--run", folder / "run")
    summary = json.loads((folder / "run" / "summary.json").read_text()) if (folder / "run" / "summary.json").exists() else {}
    if code:
        begun = bool(summary.get("steps"))
        return {"verdict": "wrong" if begun or "Traceback" in said or "gave up" in said else "refused", "why": _sentence(said)}
    learns = {part: one["share_of_kind"] for part, one in summary.get("learns", {}).items() if one["parameters"]}
    counts = {"planned": sum(one["parameters"] for one in summary.get("learns", {}).values()), "trained": _size(folder / "run" / "adapter")}
    counts["unmoved"] = _unmoved(folder / "run" / "adapter")
    return {"resumed": summary.get("attempts", 1) > 1 and summary["steps"] == _STEPS, "learns": learns, "said": said} | counts


def _size(adapter: Path) -> int:
    """The parameters in an adapter's file."""
    return sum(math.prod(tensor.shape) for tensor in stored_tensors(adapter / "adapter_model.safetensors").values())


def _unmoved(adapter: Path) -> int:
    """How many halves of LoRA pairs are still the zeros they began with: nothing ever reached them."""
    with safe_open(adapter / "adapter_model.safetensors", "pt") as file:
        return sum(not file.get_tensor(name).any() for name in file.keys() if ".lora_B." in name)  # noqa: SIM118  it is no mapping


def _exported(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for to in ("adapter", "merged"):
        code, said = _holdfast("export", folder / "run", "--to", to, "--out", folder / to)
        if code:
            found[f"{to}_refused"] = _sentence(said)
    return found


def _loaded(folder: Path) -> dict[str, Any]:
    """How far logits move, through the class that config.json names, through AutoModelForCausalLM, and of the merged model."""
    config = json.loads((folder / "model" / "config.json").read_text())
    own, found = getattr(transformers, config["architectures"][0]), {}
    if not (folder / "adapter").exists():
        return {}
    base = _logits(own.from_pretrained(folder / "model", dtype=torch.float32))
    adapter = PeftModel.from_pretrained(own.from_pretrained(folder / "model", dtype=torch.float32), folder / "adapter")
    moved = _logits(adapter) - base
    found["moves"] = _share(moved, base)
    if (folder / "merged").exists():
        merged = _logits(own.from_pretrained(folder / "merged", dtype=torch.float32)) - base
        found["merged_differs"] = _share(merged - moved, moved)
        if found["merged_differs"] > _ALIKE:
            found["merged_rounds"] = _share(merged - (_logits(_rounded(adapter.merge_and_unload())) - base), moved)
    if config["model_type"] in transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        auto = transformers.AutoModelForCausalLM
        text = auto.from_pretrained(folder / "model", dtype=torch.float32)
        before = _logits(text)
        found["moves_auto"] = _share(_logits(PeftModel.from_pretrained(text, folder / "adapter")) - before, before)
    with safe_open(folder / "adapter" / "adapter_model.safetensors", "pt") as file:
        found["servers"] = [one.why for one in ignored(config, file.keys())]
    card = (folder / "adapter" / "README.md").read_text()
    found["half_told"] = HALF in card
    found["servers_told"] = all(why in card for why in found["servers"])
    return found


def _logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(input_ids=torch.arange(40, 80)[None], use_cache=False).logits.float()
    return logits


def _rounded(model: Any) -> Any:
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return model


def _share(part: torch.Tensor, whole: torch.Tensor) -> float:
    return float(f"{float(part.norm() / whole.norm().clamp_min(1e-30)):.3g}")


def _holdfast(*arguments: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "holdfast", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=_PATIENCE)
    return done.returncode, done.stdout + done.stderr


def _sentence(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    at = next((number for number, line in enumerate(lines) if line.startswith("holdfast: ")), max(0, len(lines) - 2))
    return re.sub(r"/tmp/tmp\w+/", "", " ".join(lines[at : at + 2]).removeprefix("holdfast: "))[:400]


def _apart(work: Any, *given: Any) -> dict[str, Any]:
    """The answer of a function in a process of its own; why it failed, else."""
    near, far = multiprocessing.get_context("fork").Pipe()

    def answer() -> None:
        silent = os.open(os.devnull, os.O_WRONLY)
        warnings.simplefilter("ignore")
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        torch.set_num_threads(torch.get_num_threads())  # makes the pool of a forked process; two threads at once would fail in it
        try:
            far.send(work(*given))
        except BaseException as error:  # noqa: BLE001  it is the answer
            far.send({"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:240]}"})

    child = multiprocessing.get_context("fork").Process(target=answer)
    child.start()
    found: dict[str, Any] = near.recv() if near.poll(_PATIENCE) else {"failed": f"no answer within {_PATIENCE} s"}
    child.join(5)
    return found


FIRST = (  # what people fine-tune this year, before all others
    *("qwen3_5", "qwen3_moe", "gpt_oss", "mistral3", "gemma4", "gemma3_text", "qwen3", "mixtral", "qwen2_5_vl", "qwen3_vl", "glm4v"),
    *("llama4", "deepseek_v3", "qwen3_5_moe", "qwen3_next", "glm4_moe", "phi3", "granitemoehybrid", "lfm2", "mamba2", "falcon_h1"),
    *("olmo3", "smollm3", "gemma3", "llama"),
)


def _in_order() -> list[str]:
    return [*FIRST, *(kind for kind in types() if kind not in FIRST)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    forked.install()
    known = json.loads(asked.out.read_text()) if asked.out.exists() else {"transformers": transformers.__version__, "types": {}}
    for kind in asked.types or _in_order():
        if kind in known["types"] and not (asked.again or asked.types):
            continue
        try:
            found = cell(kind)
        except (subprocess.TimeoutExpired, OSError, EOFError) as error:
            found = {"verdict": "wrong", "why": f"{type(error).__name__}"}
        found.pop("said", None)
        known["types"] = dict(sorted((known["types"] | {kind: found}).items()))
        asked.out.write_text(json.dumps(known, indent=1, ensure_ascii=False).replace(tempfile.gettempdir(), "/tmp") + "\n")
        print(f"{kind:28} {found['verdict']:9} {found.get('why', '')[:160]}", flush=True)


if __name__ == "__main__":
    main()
