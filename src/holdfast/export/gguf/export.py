"""Export to GGUF: convert, quantise, have llama.cpp compute with each file, and keep what is equal enough. Prints nothing."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from holdfast.base.disk import flush_files
from holdfast.base.errors import USAGE, Stop
from holdfast.base.files import Json, fsync_folder, sha256
from holdfast.export.ask import questions_of
from holdfast.export.card import write_card
from holdfast.export.child import measure
from holdfast.export.export import (
    ExportRequest,
    base_part,
    finish,
    reference_part,
    reference_side,
    refuse_broken,
    refuse_place,
    refuse_unequal,
    refuse_whole,
    staged,
)
from holdfast.export.gguf.convert import sixteen, write_gguf, write_gguf_adapter
from holdfast.export.gguf.families import family_of
from holdfast.export.gguf.judge import judged
from holdfast.export.gguf.kinds import SIXTEEN
from holdfast.export.gguf.make import OURS, GgufJob, Tools, converter, run_tool, write_kind, write_model
from holdfast.export.gguf.modelfile import modelfile
from holdfast.export.gguf.prove import compare_gguf, need_engine
from holdfast.export.gguf.vocabulary import adds_bos
from holdfast.export.merge import merged_bytes
from holdfast.export.proof import Comparison
from holdfast.export.subject import subject_codec

_BITS = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q6_k": 6.6}


def export_gguf(order: ExportRequest, kinds: list[str], tools: Tools) -> Json:
    """Write one file a type to a folder, or to `out` itself where that ends with .gguf. Raises Stop(1) where one is not equal enough."""
    need_engine()
    subject = order.subject
    if order.kind == "gguf-adapter":
        refuse_whole(order)
    if order.kind == "gguf-adapter" or not converter(tools):  # an adapter's base, on which it is compared, is always converted here
        family_of(subject.model)
    single = order.out.suffix == ".gguf"
    if single and len(kinds) > 1:
        raise Stop(USAGE, f"--out {order.out} is one file, {len(kinds)} types were asked for", "give a folder, or one type")
    kinds = kinds or [sixteen(subject)]
    refuse_broken(subject)
    refuse_place(order.out, _estimate_bytes(order, kinds, tools))
    codec = subject_codec(order.subject)
    with (
        staged(order.out) as folder,
        tempfile.TemporaryDirectory(prefix=".holdfast-", dir=order.out.parent, ignore_cleanup_errors=True) as place,
    ):
        work = Path(place)
        questions = questions_of(subject, codec)
        order.say(f"computing {subject.told} on {questions.samples}")
        found = measure(
            work / "reference",
            questions.samples,
            [reference_part(subject, questions), base_part(subject, questions)],
            order.env,
            order.say,
        )
        job = GgufJob(order, codec, folder, work, reference_side(found, questions), questions, tools)
        checked, refused = (_adapter(job), {}) if order.kind == "gguf-adapter" else _make_types(job, kinds)
        more: Json = {"refused": refused} if refused else {}
        if single:
            return _one_file(order, folder, checked)
        write_card(folder, subject, order.kind, checked)
        return finish(order, folder, checked, {}) | more


def _estimate_bytes(order: ExportRequest, kinds: list[str], tools: Tools) -> int:
    """Estimate the bytes of the files, with the 16-bit file they are made of; llama.cpp's converter needs 32 bits besides."""
    whole = merged_bytes(order.subject)
    read = 2 if order.kind == "gguf" and converter(tools) else 0
    return int(whole * (1 + read + sum(_BITS.get(kind, 6.0) for kind in kinds if kind not in SIXTEEN) / 16))


def _make_types(job: GgufJob, kinds: list[str]) -> tuple[Json, Json]:
    """Make every type; return figures of those kept, and the reasons of those refused. Raises Stop(1) where none is left.

    One in 16 bits is made first, whether it is asked for or not: it tells a wrong conversion from a coarse type.
    """
    name = job.order.subject.name
    whole_kind = "f32" if "f32" in kinds else sixteen(job.order.subject)
    whole = (job.folder if whole_kind in kinds else job.work) / f"{name}-{whole_kind}.gguf"
    job.order.say(f"writing {whole.name}")
    by = write_model(job, whole, whole_kind)
    first = judged(job, whole, whole_kind, proven=False)
    _refuse(job, first, whole_kind)
    checked: dict[str, Json] = {whole_kind: first.figures | {"converter": by}}
    refused: Json = {}
    for kind in [kind for kind in kinds if kind != whole_kind]:
        file = job.folder / f"{name}-{kind}.gguf"
        job.order.say(f"writing {file.name}")
        try:
            write_kind(job, whole, file, kind)
            compared = judged(job, file, kind, proven=True)
        except Stop as stop:
            if kinds == [kind]:
                raise
            compared = Comparison({}, [stop.message])
        if not compared.reasons:
            checked[kind] = compared.figures | {"converter": by}
            continue
        if not {*kinds} & {*checked} and kind == kinds[-1]:
            _refuse(job, compared, kind)
        file.unlink(missing_ok=True)
        refused[kind] = compared.reasons
        job.order.say(f"{kind} is left out: {'; '.join(compared.reasons)}")
    kept = [kind for kind in kinds if kind in checked]
    lead = job.codec.template.lead if adds_bos(job.codec) or checked[kept[-1]]["converter"] != OURS else ""
    (job.folder / "Modelfile").write_text(modelfile(job.codec, f"{name}-{kept[-1]}.gguf", job.questions.end, lead), encoding="utf-8")
    figures = checked[kept[0]]
    return (figures | {"types": {kind: checked[kind] for kind in kept}} if len(kept) > 1 else figures), refused


def _refuse(job: GgufJob, compared: Comparison, kind: str) -> None:
    """Raise Stop(1) where there are reasons."""
    refuse_unequal(job.order, Comparison(compared.figures, [f"{kind}: {reason}" for reason in compared.reasons]))


def _adapter(job: GgufJob) -> Json:
    """Export the adapter alone, compared on a base in GGUF that is made for that and not kept."""
    subject, tools = job.order.subject, job.tools
    file, base = job.folder / f"{subject.name}-lora.gguf", job.work / "base.gguf"
    kind, by = sixteen(subject), OURS
    job.order.say(f"writing {file.name}, and the base for the comparison")
    write_gguf(subject, job.codec, base, kind, adapted=False)
    if tools.folder and (tools.folder / "convert_lora_to_gguf.py").is_file():
        command = [sys.executable, str(tools.folder / "convert_lora_to_gguf.py"), str(subject.tuned)]
        command += ["--base", str(subject.facts.folder), "--outfile", str(file), "--outtype", "f32"]
        run_tool(command, job.work / "convert.log", "llama.cpp's convert_lora_to_gguf.py")
        by = "llama.cpp (convert_lora_to_gguf.py)"
    else:
        write_gguf_adapter(subject, file)
    compared = compare_gguf(base, file, kind, job.reference, job.questions, job.work, job.order.env, job.order.say)
    refuse_unequal(job.order, compared)
    return compared.figures | {"converter": by} | subject.held_otherwise()


def _one_file(order: ExportRequest, folder: Path, checked: Json) -> Json:
    (file,) = folder.glob("*.gguf")
    entry = {"path": str(order.out), "bytes": file.stat().st_size, "sha256": sha256(file)}
    flush_files([file])
    file.rename(order.out)
    fsync_folder(order.out.parent)
    return {"files": [entry], "checked": checked, "out": str(order.out), "kind": order.kind}
