"""Export an adapter and prove the export equal to base + adapter; what was not proven does not stay. Prints nothing."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from holdfast.base.disk import flush_tree
from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.files import Json, fsync_folder, remove_abandoned, sha256, write_json
from holdfast.base_model.folder import named_by_peft
from holdfast.base_model.types import for_auto_peft
from holdfast.data.tokens.codec import Codec
from holdfast.export import words
from holdfast.export.ask import Questions, questions_of
from holdfast.export.card import write_card
from holdfast.export.child import PartAnswer, measure
from holdfast.export.endings import base_ends, write_companions
from holdfast.export.learned import lost
from holdfast.export.merge import merged_bytes, write_merged
from holdfast.export.proof import EXACT, NARROWED, Comparison, Side, beyond, compare, first_layer
from holdfast.export.subject import Subject, plain_scale, subject_codec
from holdfast.export.tensors import FLOATS
from holdfast.run.adapter_folder import refuse_not_finite
from holdfast.run.artifact import ADAPTER_CONFIG, ARTIFACT

MANIFEST = "holdfast.json"
_SLACK = 64 << 20  # bytes beside the weights
_OTHER_LAYER = 1e-4  # NMSE of a hidden state from which on a layer is another one
Say = Callable[[str], None]


@dataclass(frozen=True)
class ExportRequest:
    """What is to be exported, and with what: env is the environment of the child that measures; wide: a merge in fp32."""

    subject: Subject
    kind: str
    out: Path
    env: Mapping[str, str]
    say: Say
    wide: bool = False


def export(order: ExportRequest) -> Json:
    """Write the export beside its place, prove it there, and give it its name. Raises Stop(1) where it is not equal, and leaves nothing."""
    refuse_broken(order.subject)
    refuse_place(order.out, needed_bytes(order))
    codec = subject_codec(order.subject)
    with staged(order.out) as folder, tempfile.TemporaryDirectory(prefix="holdfast-export-", ignore_cleanup_errors=True) as work:
        order.say(f"writing {order.kind}: {order.out}")
        known = write_merged_files(order, codec, folder) if order.kind == "merged" else write_adapter(order, codec, folder)
        questions = questions_of(order.subject, codec)
        order.say(f"comparing it with {order.subject.told} on {questions.samples}")
        compared = prove(order, questions, folder, Path(work))
        if order.kind == "merged" and compared.numeric and compared.reasons:
            compared, known = _rounded_or_wide(order, codec, questions, folder, Path(work), compared, known)
        refuse_unequal(order, compared)
        write_card(folder, order.subject, order.kind, compared.figures)
        return finish(order, folder, compared.figures, known)


def write_merged_files(order: ExportRequest, codec: Codec, folder: Path) -> dict[str, str]:
    """Write the merged model; return the SHA-256, by name, of the files that were hashed while being written."""
    return {file.name: digest for file, digest in write_merged(order.subject, codec, folder, wide=order.wide)}


def _rounded_or_wide(
    order: ExportRequest, codec: Codec, questions: Questions, folder: Path, work: Path, narrow: Comparison, known: dict[str, str]
) -> tuple[Comparison, dict[str, str]]:
    """Merge in fp32 where a merge differs: if that is equal, rounding explains the difference.

    A small one is let be, with its figures; where the base's 16 bits lose more than that, what was merged in fp32 is what is exported.
    """
    if order.subject.whole is not None or order.subject.model.stored == "F32":
        return narrow, known
    wider = folder.with_name(f"{folder.name}.wide")
    try:
        refuse_place(wider, merged_bytes(order.subject, wide=True))
        order.say(f"it differs (NMSE {narrow.figures['nmse']:.1e}); merging it in fp32 to see whether rounding does that")
        wider.mkdir()
        hashes = write_merged_files(replace(order, wide=True), codec, wider)
        found = prove(replace(order, wide=True), questions, wider, work / "wide")
        if found.reasons:
            return (found if found.numeric else narrow), known
        left = beyond(narrow.figures, NARROWED)
        if not narrow.figures["greedy"]["apart"] and not left:
            rounding = {"budget": NARROWED, "rounding": f"merged in fp32 it is equal (NMSE {found.figures['nmse']:.1e})"}
            return Comparison(narrow.figures | rounding), known
        why = "; ".join(left) or "greedy answers differ"
        kind = order.subject.model.stored
        if lost(narrow.figures["learned"]):
            why = f"too small to be seen beside the rounding of {kind}: {why}"
        order.say(f"in the base's {kind} too little of the adapter is left ({why}): it is written in fp32")
        shutil.rmtree(folder)
        wider.rename(folder)
        return Comparison(found.figures | {"rounding": f"in {kind}: NMSE {narrow.figures['nmse']:.1e}; {why}"}), hashes
    finally:
        shutil.rmtree(wider, ignore_errors=True)


def write_adapter(order: ExportRequest, codec: Codec, folder: Path) -> dict[str, str]:
    """Write the adapter as PEFT reads it, with tokenizer and generation settings; return {}: no hash was taken on the way."""
    source = order.subject.tuned
    shutil.copyfile(source / ARTIFACT, folder / ARTIFACT)
    about = plain_scale(for_auto_peft(order.subject.config, order.subject.facts.config))
    write_json(folder / ADAPTER_CONFIG, about | named_by_peft(order.subject.base_name))
    write_companions(codec, order.subject.facts, folder)
    return {}


def needed_bytes(order: ExportRequest) -> int:
    """Return the bytes of disk an export takes. Raises Stop(1) where the adapter cannot be exported so."""
    if order.kind == "adapter":
        refuse_whole(order)
        return order.subject.weights.stat().st_size
    return merged_bytes(order.subject)


def refuse_whole(order: ExportRequest) -> None:
    """Raise Stop(2) where an adapter is asked of a model that was trained as a whole."""
    if order.subject.whole is not None:
        text = f"{order.subject.name} has no adapter: weights of the model itself were trained"
        raise Stop(USAGE, text, f"export it --to {'gguf' if order.kind == 'gguf-adapter' else 'merged'}")


def refuse_broken(subject: Subject) -> None:
    """Raise Stop(1) where the adapter, or the model that was trained as a whole, holds NaN or Inf, with the tensors that do."""
    trained = (subject.adapter_tensors if subject.whole is None else subject.model_tensors).items()
    for file in dict.fromkeys(one.file for _, one in trained):
        refuse_not_finite(file, {name: one.stored for name, one in trained if one.file == file and one.stored.dtype in FLOATS})


def refuse_place(out: Path, needed: int) -> None:
    """Raise Stop(1) where something is there already, the folder above is not, or the disk has no room."""
    if out.exists() or out.is_symlink():
        raise Stop(BLOCKED, f"{out} exists", "give another --out, or remove it first")
    if not out.parent.is_dir():
        raise Stop(BLOCKED, f"{out.parent} is not a folder", f"mkdir -p {shlex.quote(str(out.parent))}")
    if not os.access(out.parent, os.W_OK):
        raise Stop(BLOCKED, f"{out.parent} cannot be written to", "give another --out")
    free = shutil.disk_usage(out.parent).free
    if free < needed + _SLACK:
        text = f"{out.parent} has {free / 1e9:,.2f} GB left, the export needs {(needed + _SLACK) / 1e9:,.2f} GB"
        raise Stop(BLOCKED, text, "make room, or give another --out")


class staged:
    """A folder beside `out` that is gone at the end, unless it was given its name by then."""

    def __init__(self, out: Path) -> None:
        self.out, self.folder = out, out.with_name(f".{out.name}.{os.getpid()}.tmp")

    def __enter__(self) -> Path:
        remove_abandoned(self.out)  # of exports that were killed: gigabytes
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        return self.folder

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def prove(order: ExportRequest, questions: Questions, folder: Path, work: Path) -> Comparison:
    """Load the export by transformers (an adapter by PEFT) and compare it with base + adapter; the first layer that differs with it."""
    subject = order.subject
    reference = reference_part(subject, questions)
    own = {"model": str(folder), "adapter": None}
    if order.kind == "adapter":
        own = {"model": str(subject.facts.folder), "adapter": str(folder)}
    exported: Json = {"name": "exported", **own, "pad": questions.pad, "logits": questions.places}
    exported |= {"prompts": questions.prompts, "ends": None, "longest": questions.longest}
    exported |= {"settings": str(folder), "chats": questions.chats, "texts": questions.texts, "tokenizer": str(folder)}
    base = base_part(subject, questions) | {"texts": []}  # whether its tokenizer can be loaded
    found = measure(work, questions.samples, [reference, base, exported], order.env, order.say)
    theirs = found["exported"]
    if unloadable := theirs.facts.get("unloadable"):
        if "unloadable" not in found["base"].facts:
            raise Stop(BLOCKED, f"transformers cannot load the tokenizer of the {order.kind} export: {unloadable}", "please report it")
        questions = replace(questions, chats=[], chat_ids=[], texts=[], text_ids=[])
    answers = theirs.facts["answers"]
    side = Side(_logits(theirs), answers, theirs.facts["chats"], theirs.facts["texts"], *_ends(answers))
    engine = "peft" if order.kind == "adapter" else "transformers"
    compared = compare(reference_side(found, questions), side, engine, EXACT, questions.end, exact=True)
    if order.kind == "adapter" and compared.figures["stops"] and questions.end not in (None, *base_ends(subject.facts)):
        compared.figures["stops_words"] = words.of_own_settings(base_ends(subject.facts))
    if unloadable:
        compared.figures["token_ids_words"] = f"not compared: transformers cannot load this tokenizer, nor the base's ({unloadable})"
    compared.figures.update(subject.held_otherwise())
    if order.kind == "merged":
        compared.figures["type"] = "F32" if order.wide else subject.model.stored
    if compared.reasons:
        ours, other = found["reference"].hidden, theirs.hidden
        assert ours is not None and other is not None
        compared.figures["first_layer"] = first_layer(ours, other, _OTHER_LAYER)
    return compared


def reference_part(subject: Subject, questions: Questions) -> Json:
    """Return what is asked of base + adapter, the base as its files are, in 16 or 32 bits; or of the whole model."""
    part: Json = {"name": "reference", **subject.loaded(), "pad": questions.pad}
    return part | {"logits": questions.places, "prompts": questions.prompts, "ends": questions.ends, "longest": questions.longest}


def base_part(subject: Subject, questions: Questions) -> Json:
    """Return what is asked of the base alone: its difference from the reference is what was learned."""
    return {"name": "base", "model": str(subject.facts.folder), "adapter": None, "logits": questions.places}


def reference_side(found: dict[str, PartAnswer], questions: Questions) -> Side:
    """Return what base + adapter gave, with the base's own logits where it was asked and has the same vocabulary."""
    logits, answers = _logits(found["reference"]), found["reference"].facts["answers"]
    base = _logits(found["base"]) if "base" in found else None
    base = base if base is not None and base.shape == logits.shape else None
    return Side(logits, answers, questions.chat_ids, questions.text_ids, questions.ends, questions.kept_pad, base)


def _logits(found: PartAnswer) -> npt.NDArray[np.float32]:
    assert found.logits is not None
    return found.logits


def _ends(answers: list[Json]) -> tuple[tuple[int, ...], int | None]:
    ends = tuple(number for number in answers[0]["ends"] if number is not None)
    return ends, answers[0]["pad"]


def refuse_unequal(order: ExportRequest, compared: Comparison) -> None:
    """Raise Stop(1) with every reason, and with the first layer that differs."""
    if not compared.reasons:
        return
    layer = compared.figures.get("first_layer")
    where = f"; the first that differs is {layer}" if layer else ""
    text = f"the {order.kind} export does not equal {order.subject.told}{where}:\n  " + "\n  ".join(compared.reasons)
    answer: Json = {"files": [], "checked": compared.figures, "reasons": compared.reasons}
    other = "; --to merged is held against transformers alone" if order.kind.startswith("gguf") else ""
    raise Stop(BLOCKED, text, f"nothing was written; please report it with these lines{other}", answer)


def finish(order: ExportRequest, folder: Path, figures: Json, known: dict[str, str]) -> Json:
    """Write the manifest, flush, and give the folder its name; return the answer of the command."""
    names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    entries = [
        {"path": name, "bytes": (folder / name).stat().st_size, "sha256": known.get(name) or sha256(folder / name)} for name in names
    ]
    origin = order.subject.hashes()
    named = {key: Path(origin[key]).name for key in ("run", "adapter", "base") if Path(origin[key] or "").is_absolute()}
    facts = {"format": 1, "kind": order.kind, "name": order.subject.name, **origin, **named, "checked": figures}  # it is given away
    write_json(folder / MANIFEST, facts | {"files": entries})
    flush_tree(folder)
    folder.rename(order.out)
    fsync_folder(order.out.parent)
    files = [entry | {"path": str(order.out / str(entry["path"]))} for entry in entries]
    return {"files": files, "checked": figures, "out": str(order.out), "kind": order.kind}
