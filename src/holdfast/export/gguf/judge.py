"""Judge each GGUF file by what llama.cpp computes with it, and say where a difference comes from.

A file in 16 bits is held to EXACT. Where one is beyond, or a quantised one beyond its table, the base alone is written in that type and
asked the same: what that engine and type cost the base is no fault of the export.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holdfast.base.errors import Stop
from holdfast.base.files import Json
from holdfast.export.child import measure
from holdfast.export.export import reference_part, reference_side
from holdfast.export.gguf.kinds import SIXTEEN, budget_of
from holdfast.export.gguf.make import GgufJob, write_kind, write_model
from holdfast.export.gguf.prove import compare_gguf, first_tensor
from holdfast.export.learned import NOTHING
from holdfast.export.proof import NARROWED, Budget, Comparison, beyond

_TIMES = 2.0  # what an export may cost beside what the base alone costs in that type
_ERRORS = 2.0  # standard errors of the KL: by less, a coarse type of a proven model is beyond its limit by chance
_TOP1 = 0.05  # by how much less often the likeliest token may be the same
_BASE: Budget = {"nmse": 1e-3, "kl_per_token": 1e-2, "top1_agreement": 0.95}  # of the base in 16 bits: beyond, it is converted wrong


def judged(job: GgufJob, file: Path, kind: str, proven: bool) -> Comparison:
    """Compare one file with the reference; the reasons say why it is refused. proven: a wider file of the same model is equal."""
    job.order.say(f"comparing {file.name} with {job.order.subject.told} by llama.cpp")
    compared = compare_gguf(file, None, kind, job.reference, job.questions, job.work, job.order.env, job.order.say)
    compared.figures.update({"type": kind} | job.order.subject.held_otherwise())
    if not compared.reasons:
        return compared
    if (
        compared.numeric
        and not (compared.figures["greedy"]["apart"] and kind in SIXTEEN)
        and first_tensor(file, kind, job.order.subject) is None
    ):
        compared = _calibrate(job, compared, kind, proven)
    if compared.reasons:
        compared.figures["first_layer"] = lead(job, file, kind, compared, proven)
    return compared


def lead(job: GgufJob, file: Path, kind: str, compared: Comparison, proven: bool) -> str:
    """Say where the difference comes from: the vocabulary, a tensor, the type, or the metadata."""
    alike = not compared.numeric and not beyond(compared.figures, budget_of(kind))
    tensor = None if alike else first_tensor(file, kind, job.order.subject)
    if tensor is not None:
        return tensor
    if not compared.numeric:
        return f"the vocabulary, its special tokens or the chat template (all tensors {'compute' if alike else 'are'} alike)"
    if proven:
        what = "bf16 keeps too few digits of what was learned" if kind == "bf16" else f"{kind} costs this model that much"
        return f"none of its tensors: the same model in f16 is equal, {what}"
    return "none of its tensors, so something its metadata say (RoPE, norms, windows)"


def _calibrate(job: GgufJob, compared: Comparison, kind: str, proven: bool) -> Comparison:
    """Judge the figures again by what the base alone shows in that engine and type, or what rounding may cost a proven model.

    Of a type that is coarse in itself a mean KL of a few hundred positions is refused where it is beyond by more than chance.
    """
    noise = _ERRORS * compared.figures.get("kl_error", 0.0) if proven and kind not in SIXTEEN else 0.0
    allowed = budget_of(kind) | {"kl_per_token": budget_of(kind)["kl_per_token"] + noise}
    if not beyond(compared.figures, allowed):
        return _allowed(compared, allowed)
    if kind in SIXTEEN and (proven or (kind != "f32" and _equal_wide(job))):
        allowed = NARROWED
    else:
        base = _of_base(job, kind)
        if base is None or (kind in SIXTEEN and beyond(base, _BASE)):
            return compared
        compared.figures["base_alone"] = {name: base[name] for name in ("nmse", "kl_per_token", "top1_agreement")}
        fixed = budget_of(kind)
        allowed = {name: max(fixed[name], _TIMES * base[name]) for name in ("nmse", "kl_per_token")}
        allowed["kl_per_token"] += noise
        allowed["top1_agreement"] = min(fixed["top1_agreement"], base["top1_agreement"] - _TOP1)
        if kind in SIXTEEN and (learned := compared.figures.get("learned")):
            allowed["learned"] = max(fixed["learned"], _TIMES * base["nmse"] / max(learned["nmse"], NOTHING))
    return _allowed(compared, allowed)


def _allowed(compared: Comparison, allowed: Budget) -> Comparison:
    """Return the figures judged by another budget, which they name."""
    told = {name: value for name, value in allowed.items() if value != float("inf")}
    return replace(compared, figures=compared.figures | {"budget": told}, reasons=beyond(compared.figures, allowed))


def _equal_wide(job: GgufJob) -> bool:
    """True if a model of which all weights were trained is equal in 32 bits: what it differs by in 16 is then their rounding.

    The base alone does not tell that: its weights may have 16 bits, or four, to begin with.
    """
    if job.order.subject.whole is None:
        return False
    file = job.work / "wide-f32.gguf"
    job.order.say("writing the same model in 32 bits, which tells rounding from a wrong conversion")
    try:
        write_model(job, file, "f32")
        return not judged(job, file, "f32", proven=False).reasons
    finally:
        file.unlink(missing_ok=True)


def _of_base(job: GgufJob, kind: str) -> Json | None:
    """Return the figures of the base alone in that type, also where all its weights were trained; None where it cannot be made or asked."""
    subject = replace(job.order.subject, whole=None)
    job = replace(job, order=replace(job.order, subject=subject))
    job.order.say(f"measuring what {kind} costs the base alone")
    file, wide = job.work / f"base-{kind}.gguf", job.work / "base-f16.gguf"
    try:
        if job.tools.quantise and kind not in SIXTEEN:
            write_kind(job, wide, wide, "f16", adapted=False)
        write_kind(job, wide, file, kind, adapted=False)
        part = reference_part(subject, job.questions) | {"adapter": None}
        found = measure(job.work / "base", job.questions.samples, [part], job.order.env, job.order.say)
        reference = reference_side(found, job.questions)
        return compare_gguf(file, None, kind, reference, job.questions, job.work, job.order.env, job.order.say).figures
    except Stop:
        return None
    finally:
        file.unlink(missing_ok=True)
        wide.unlink(missing_ok=True)
