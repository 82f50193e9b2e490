"""Export to GGUF: convert, quantise, have llama.cpp compute with each file, and keep what is equal enough. Prints nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.files import Json, fsync_folder, sha256
from holdfast.data.tokens.codec import Codec, load_codec
from holdfast.export.ask import Questions, questions_of
from holdfast.export.card import write_card
from holdfast.export.child import measure
from holdfast.export.export import Order, finish, reference_part, reference_side, refuse_place, refuse_unequal, refuse_whole, staged
from holdfast.export.gguf.convert import OWN_TYPES, sixteen, write_gguf, write_gguf_adapter
from holdfast.export.gguf.families import family_of
from holdfast.export.gguf.kinds import SIXTEEN
from holdfast.export.gguf.modelfile import modelfile
from holdfast.export.gguf.prove import compare_gguf, first_tensor, need_engine
from holdfast.export.merge import merged_tensors, write_merged
from holdfast.export.proof import Compared, Side

_BITS = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q6_k": 6.6}


@dataclass(frozen=True)
class Tools:
    """llama.cpp's checkout and its llama-quantize, where there are such."""

    folder: Path | None = None
    quantise: Path | None = None


def export_gguf(order: Order, kinds: list[str], tools: Tools) -> Json:
    """Write one file a type to a folder, or to `out` itself where that ends with .gguf. Raises Stop(1) where one is not equal enough."""
    need_engine()
    subject = order.subject
    if order.kind == "gguf-adapter":
        refuse_whole(order)
    if not tools.folder:
        family_of(subject.model)
    single = order.out.suffix == ".gguf"
    if single and len(kinds) > 1:
        raise Stop(USAGE, f"--out {order.out} is one file, {len(kinds)} types were asked for", "give a folder, or one type")
    kinds = kinds or [sixteen(subject)]
    refuse_place(order.out, _needed(order, kinds))
    codec = load_codec(subject.facts.folder)
    with staged(order.out) as folder, tempfile.TemporaryDirectory(prefix=".holdfast-", dir=order.out.parent) as place:
        work = Path(place)
        questions = questions_of(subject, codec)
        order.say(f"computing {subject.told} on {len(questions.samples)} {questions.samples.kind} rows")
        found = measure(work / "reference", questions.samples, [reference_part(subject, questions)], order.env)
        reference = reference_side(found["reference"], questions)
        if order.kind == "gguf-adapter":
            checked = _adapter(order, codec, folder, work, reference, questions, tools)
        else:
            checked = _merged(order, codec, folder, work, reference, questions, kinds, tools)
        if single:
            return _one_file(order, folder, checked)
        write_card(folder, subject, order.kind, checked)
        return finish(order, folder, checked, {})


def _needed(order: Order, kinds: list[str]) -> int:
    """About what the files take, with the 16 bits they are made of."""
    whole = sum(tensor.bytes for tensor in merged_tensors(order.subject)[0])
    return int(whole * (1 + sum(_BITS.get(kind, 6.0) for kind in kinds if kind not in SIXTEEN) / 16))


def _merged(
    order: Order, codec: Codec, folder: Path, work: Path, reference: Side, questions: Questions, kinds: list[str], tools: Tools
) -> Json:
    """Every type, the 16 bits first, whether these are asked for or not: they tell a wrong conversion from a coarse type."""
    subject, name = order.subject, order.subject.name
    whole_kind = next((kind for kind in kinds if kind in SIXTEEN), sixteen(subject))
    whole = (folder if whole_kind in kinds else work) / f"{name}-{whole_kind}.gguf"
    order.say(f"writing {whole.name}")
    if tools.folder:
        _by_llama_cpp(order, codec, whole, whole_kind, work, tools.folder)
    else:
        write_gguf(subject, codec, whole, whole_kind)
    checked = {whole_kind: _proven(order, whole, whole_kind, reference, questions, work)}
    for kind in kinds:
        if kind in checked:
            continue
        file = folder / f"{name}-{kind}.gguf"
        order.say(f"writing {file.name}")
        if tools.quantise:
            _run([str(tools.quantise), str(whole), str(file), kind.upper()], work / "quantise.log", "llama-quantize")
        elif kind in (*OWN_TYPES, *SIXTEEN):
            write_gguf(subject, codec, file, kind)
        checked[kind] = _proven(order, file, kind, reference, questions, work)
    last = folder / f"{name}-{kinds[-1]}.gguf"
    (folder / "Modelfile").write_text(modelfile(codec, last.name, questions.end), encoding="utf-8")
    figures = checked[kinds[0]]
    return figures | {"types": {kind: checked[kind] for kind in kinds}} if len(kinds) > 1 else figures


def _proven(order: Order, file: Path, kind: str, reference: Side, questions: Questions, work: Path) -> Json:
    order.say(f"comparing {file.name} with {order.subject.told} by llama.cpp")
    compared = compare_gguf(file, None, kind, reference, questions, work, order.env)
    if compared.reasons:
        compared.figures["first_layer"] = first_tensor(file, kind, order.subject)
        refuse_unequal(order, Compared(compared.figures, [f"{kind}: {reason}" for reason in compared.reasons]))
    return compared.figures | {"type": kind}


def _adapter(order: Order, codec: Codec, folder: Path, work: Path, reference: Side, questions: Questions, tools: Tools) -> Json:
    """The adapter alone, compared on a base in GGUF that is made for that and not kept."""
    subject = order.subject
    file, base = folder / f"{subject.name}-lora.gguf", work / "base.gguf"
    kind = sixteen(subject)
    order.say(f"writing {file.name}, and the base for the comparison")
    write_gguf(subject, codec, base, kind, adapted=False)
    if tools.folder and (tools.folder / "convert_lora_to_gguf.py").is_file():
        command = [sys.executable, str(tools.folder / "convert_lora_to_gguf.py"), str(subject.tuned)]
        command += ["--base", str(subject.facts.folder), "--outfile", str(file), "--outtype", "f32"]
        _run(command, work / "convert.log", "llama.cpp's convert_lora_to_gguf.py")
    else:
        write_gguf_adapter(subject, file)
    compared = compare_gguf(base, file, kind, reference, questions, work, order.env)
    refuse_unequal(order, compared)
    return compared.figures


def _by_llama_cpp(order: Order, codec: Codec, file: Path, kind: str, work: Path, checkout: Path) -> None:
    """Merge, and have llama.cpp's own converter read that."""
    merged = work / "merged"
    merged.mkdir()
    write_merged(order.subject, codec, merged)
    command = [sys.executable, str(checkout / "convert_hf_to_gguf.py"), str(merged), "--outfile", str(file), "--outtype", kind]
    _run(command, work / "convert.log", "llama.cpp's convert_hf_to_gguf.py")
    shutil.rmtree(merged)


def _run(command: list[str], log: Path, name: str) -> None:
    with log.open("wb") as output:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False).returncode
    if code:
        last = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        missing = re.search(r"No module named '([\w.]+)'", last)
        hint = f"pip install {missing[1]}, which it needs" if missing else "leave out --llama-cpp and LLAMA_CPP: ours may convert it"
        raise Stop(BLOCKED, f"{name} ended with exit code {code}: {last[:300]}", hint)


def _one_file(order: Order, folder: Path, checked: Json) -> Json:
    (file,) = folder.glob("*.gguf")
    entry = {"path": str(order.out), "bytes": file.stat().st_size, "sha256": sha256(file)}
    file.rename(order.out)
    fsync_folder(order.out.parent)
    return {"files": [entry], "checked": checked, "out": str(order.out), "kind": order.kind}
