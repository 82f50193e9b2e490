"""Make the GGUF files of an export: by llama.cpp's own converter where it is at hand, else by ours; the other types from one of 16 bits."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import BLOCKED, Stop
from holdfast.data.tokens.codec import Codec
from holdfast.export.ask import Questions
from holdfast.export.export import Order
from holdfast.export.gguf.convert import OWN_TYPES, write_gguf
from holdfast.export.gguf.kinds import SIXTEEN
from holdfast.export.merge import write_merged
from holdfast.export.proof import Side

OURS = "holdfast"
_CONVERTER = "convert_hf_to_gguf"


@dataclass(frozen=True)
class Tools:
    """llama.cpp's checkout and its llama-quantize, where there are such."""

    folder: Path | None = None
    quantise: Path | None = None


@dataclass(frozen=True)
class Job:
    """What an export to GGUF goes by: folder: what is kept; work: what is not; reference: what base + adapter compute."""

    order: Order
    codec: Codec
    folder: Path
    work: Path
    reference: Side
    questions: Questions
    tools: Tools


def converter(tools: Tools) -> Path | None:
    """Find llama.cpp's convert_hf_to_gguf.py: in the named checkout, on the PATH, or as an installed package; None where none is."""
    if tools.folder:
        return tools.folder / f"{_CONVERTER}.py"
    found = shutil.which(f"{_CONVERTER}.py")
    if found:
        return Path(found).resolve()
    spec = importlib.util.find_spec(_CONVERTER)
    return Path(spec.origin) if spec and spec.origin else None


def write_model(job: Job, file: Path, kind: str) -> str:
    """Write the merged model in 16 or 32 bits; who converted it. One nobody named that fails is not used, and that is said."""
    program = converter(job.tools)
    if program is None:
        write_gguf(job.order.subject, job.codec, file, kind)
        return OURS
    try:
        _by_llama_cpp(job, file, kind, program)
    except Stop as stop:
        if job.tools.folder:
            raise
        job.order.say(f"{stop.message}; it is converted by holdfast")
        write_gguf(job.order.subject, job.codec, file, kind)
        return OURS
    return f"llama.cpp ({program.name})"


def write_kind(job: Job, sixteen: Path, file: Path, kind: str, adapted: bool = True) -> None:
    """Write the model in one more type, quantised from the file of 16 bits where llama-quantize is at hand. Raises Stop(1)."""
    if job.tools.quantise and kind not in SIXTEEN:
        run_tool([str(job.tools.quantise), str(sixteen), str(file), kind.upper()], job.work / "quantise.log", "llama-quantize")
    elif kind in SIXTEEN and adapted:
        write_model(job, file, kind)
    elif kind in (*OWN_TYPES, *SIXTEEN):
        write_gguf(job.order.subject, job.codec, file, kind, adapted)
    else:
        raise Stop(BLOCKED, f"{kind} can only be made by llama-quantize, which is not on the PATH or in --llama-cpp DIR", "build llama.cpp")


def _by_llama_cpp(job: Job, file: Path, kind: str, program: Path) -> None:
    """Merge, and have llama.cpp's own converter read that: what the adapter changed is fp32 there, and rounded once."""
    merged = job.work / "merged"
    merged.mkdir()
    try:
        write_merged(job.order.subject, job.codec, merged, wide=True)
        command = [sys.executable, str(program), str(merged), "--outfile", str(file), "--outtype", kind]
        run_tool(command, job.work / "convert.log", f"llama.cpp's {program.name}")
    finally:
        shutil.rmtree(merged)


def run_tool(command: list[str], log: Path, name: str) -> None:
    """Run a program of llama.cpp's. Raises Stop(1) with the last thing it said where it fails."""
    with log.open("wb") as output:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False, env=dict(os.environ)).returncode
    if code:
        last = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        missing = re.search(r"No module named '([\w.]+)'", last)
        hint = f"pip install {missing[1]}, which it needs" if missing else "leave out --llama-cpp and LLAMA_CPP: ours may convert it"
        raise Stop(BLOCKED, f"{name} ended with exit code {code}: {last[:300]}", hint)
