"""What `export` shows: the comparison with base + adapter, in a terminal and as a page that needs nothing else. Computes nothing new."""

from __future__ import annotations

import shlex
from pathlib import Path

from holdfast.base.files import Json
from holdfast.base.inert import say
from holdfast.base.versions import __version__
from holdfast.base_model.folder import hub_name
from holdfast.export import words
from holdfast.report.pages import page_template
from holdfast.report.words import shown


def lines(checked: Json) -> list[tuple[str, str, str]]:
    """Return (what was compared, what was found, what is allowed) of one file or folder."""
    budget = checked["budget"]
    return [
        ("loaded by", words.of_engine(checked), ""),
        *([("base", base, "")] if (base := words.of_base(checked)) else []),
        (
            "NMSE",
            f"{checked['nmse']:.2e} of logits at {checked['positions']} positions",
            f"{budget['nmse']:.0e}" if "nmse" in budget else "",
        ),
        ("KL per token", f"{checked['kl_per_token']:.2e} nats", f"{budget['kl_per_token']:.0e}"),
        ("likeliest token", f"the same at {checked['top1_agreement']:.1%} of positions", f"{budget['top1_agreement']:.0%}"),
        *([("what was learned", learned, "")] if (learned := words.of_learned(checked)) else []),
        ("greedy answers", words.of_greedy(checked), ""),
        ("token ids", f"of rendered conversations as in training: {words.of_token_ids(checked)}", "yes"),
        ("stops", f"where training ended its answers: {words.of_stops(checked)}", "yes"),
    ]


def next_command(kind: str, out: Path, base: str, options: str | None) -> str:
    """Return what to do with an export of this kind (adapter, merged, gguf, gguf-adapter) at `out`.

    base: the model below it. options: vLLM's for an adapter, its folder as PATH; None where servers refuse it, or leave some of it out.
    """
    place, (name, revision) = shown(out), hub_name(base)
    served = shlex.quote(name) + (f" --revision {shlex.quote(revision)}" if revision else "")
    adapter = f"holdfast export {place} --to merged --out {shown(out.with_name(f'{out.name}-merged'))}"
    if options is not None:
        adapter = f"vllm serve {served} --enable-lora --lora-modules tuned={place} {options.replace('PATH', place)}"
    return {
        "adapter": adapter,
        "merged": f"vllm serve {place}",
        "gguf": f"llama-server -m {place}"
        if out.suffix == ".gguf"  # one file, without a Modelfile
        else f"ollama create {shlex.quote(out.name.lower())} -f {shown(out / 'Modelfile')}",
        "gguf-adapter": f"llama-server -m BASE.gguf --lora {place}",
    }[kind]


def show(answer: Json, kind: str, out: Path, base: str, options: str | None) -> None:
    """Print the comparison, the files, and what to do with them; base, options: as `next_command` has them."""
    for checked in _types(answer):
        for what, found, allowed in lines(checked):
            say(f"{what:17}{found}" + (f" ({allowed} allowed)" if allowed and allowed != "yes" else ""))
    for file in answer["files"]:
        say(f"{file['bytes']:>15,} bytes  {file['sha256'][:16]}  {file['path']}")
    say(f"next: {next_command(kind, out, base, options)}")


def page(answer: Json, name: str, reference: str) -> str:
    """Render the same as a page, also of an export that was refused: with its reasons, and the first layer that differs."""
    return page_template("exported.html").render(
        name=name,
        reference=reference,
        reasons=answer.get("reasons") or [],
        layer=answer["checked"].get("first_layer"),
        types=[lines(checked) for checked in _types(answer)],
        unseen=any(words.unseen(checked) for checked in _types(answer)),
        files=answer["files"],
        version=__version__,
    )


def _types(answer: Json) -> list[Json]:
    return [one for one in (answer["checked"].get("types") or {"": answer["checked"]}).values() if one]
