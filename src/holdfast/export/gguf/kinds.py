"""The quantisations of GGUF: what each may cost, who can make it, and where llama.cpp's own programs are."""

from __future__ import annotations

import difflib
import os
import shutil
from pathlib import Path

from holdfast.base.errors import USAGE, Stop
from holdfast.export.gguf.convert import OWN_TYPES
from holdfast.export.proof import EXACT, Budget

SIXTEEN = ("bf16", "f16", "f32")
_KL = {  # nats a token that a quantisation may cost, and the share of positions with the same likeliest token
    "q8_0": (0.01, 0.9),
    "q6_k": (0.03, 0.85),
    **dict.fromkeys(("q5_k_m", "q5_k_s", "q5_1", "q5_0"), (0.1, 0.75)),
    **dict.fromkeys(("q4_k_m", "q4_k_s", "q4_1", "q4_0", "iq4_nl", "iq4_xs"), (0.3, 0.6)),
    **dict.fromkeys(("q3_k_l", "q3_k_m", "q3_k_s", "iq3_m", "iq3_s"), (0.8, 0.4)),
    **dict.fromkeys(("q2_k", "q2_k_s", "iq3_xs", "iq3_xxs", "iq2_m", "iq2_s", "iq2_xs"), (2.0, 0.2)),
}


def budget_of(kind: str) -> Budget:
    """Return what an export may differ by. The NMSE of a quantised one is reported, not judged: KL is what its use feels."""
    if kind in SIXTEEN:
        return EXACT
    kl, top1 = _KL[kind]
    return {"nmse": float("inf"), "kl_per_token": kl, "top1_agreement": top1}


def read_kinds(text: str | None) -> list[str]:
    """Parse the types asked for. Raises Stop(2) for one llama.cpp does not have."""
    kinds = [*dict.fromkeys(part.strip().lower() for part in (text or "").split(",") if part.strip())]
    known = [*SIXTEEN, *_KL]
    for kind in kinds:
        if kind not in known:
            near = difflib.get_close_matches(kind, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
            raise Stop(USAGE, f"--quantise {kind}: no such quantisation", hint)
    return kinds


def llama_cpp(given: Path | None) -> Path | None:
    """Return the folder of llama.cpp that was asked for. Raises Stop(2) where it has no converter."""
    named = given or (Path(os.environ["LLAMA_CPP"]) if os.environ.get("LLAMA_CPP") else None)
    if named is None:
        return None
    folder = named.expanduser().absolute()
    if not (folder / "convert_hf_to_gguf.py").is_file():
        where = "--llama-cpp" if given else "LLAMA_CPP"
        text = f"{where} {folder} has no convert_hf_to_gguf.py: it is not a checkout of llama.cpp"
        raise Stop(USAGE, text, "git clone https://github.com/ggml-org/llama.cpp, and give that folder; or leave it out")
    return folder


def quantiser(kinds: list[str], folder: Path | None) -> Path | None:
    """Find llama-quantize. Raises Stop(2) where every type needs it and it is missing."""
    places = [folder / "build" / "bin" / "llama-quantize", folder / "llama-quantize"] if folder else []
    found = next((place for place in places if os.access(place, os.X_OK)), None)
    on_path = shutil.which("llama-quantize")
    program = found or (Path(on_path) if on_path else None)
    beyond = [kind for kind in kinds if kind not in (*SIXTEEN, *OWN_TYPES)]
    if beyond and beyond == kinds and program is None:
        text = f"{', '.join(beyond)} can only be made by llama-quantize, which is not on the PATH or in --llama-cpp DIR"
        raise Stop(USAGE, text, f"build llama.cpp, or ask for one of {', '.join(OWN_TYPES)}")
    return program
