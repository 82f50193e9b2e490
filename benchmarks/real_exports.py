"""Whether a run answers alike wherever it is loaded: the adapter by PEFT on the class that config.json names, the merged model by
AutoModelForCausalLM, GGUF by llama.cpp, merged and as an adapter on the base in GGUF, and the run by `holdfast serve`.

    python benchmarks/real_exports.py RUN ROWS.jsonl WORK [--prompts 50] [--longest 48] [--types f16,q8_0]
    python benchmarks/real_exports.py MODEL ROWS.jsonl WORK --steps 40

WORK: a folder for the exports (made where missing; what is there is used again). Each reads its own files alone, chat template and
tokenizer too, answers greedily, and is held against the adapter: one JSON object, which also tells how near the adapter's two tokens
were where an answer parts, and how many answers the base gives alike. Rows have `instruction` and `output`. Of `holdfast serve`, which
gives texts, texts are compared. With --steps the run is made first: LoRA of MODEL on the rows behind those that are asked.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from holdfast.base.files import read_json, write_json
from holdfast.export.gguf.convert import write_gguf
from holdfast.export.subject import read_subject, subject_codec

Answers = tuple[list[list[int]], list[list[int]]]  # token ids of the prompts, and of the answers
KINDS = {"adapter": [], "merged": [], "gguf": ["--quantise", "TYPES"], "gguf-adapter": []}


def exported(run: Path, work: Path, types: str) -> dict[str, Path]:
    """The folders of the exports."""
    for kind, more in KINDS.items():
        if not (work / kind).exists():
            command = [sys.executable, "-m", "holdfast", "export", str(run), "--to", kind, "--out", str(work / kind)]
            command += [types if one == "TYPES" else one for one in more]
            subprocess.run(command, check=True, stdout=sys.stderr)
    if not (base := work / "base-f16.gguf").exists():
        subject = read_subject(run)
        write_gguf(subject, subject_codec(subject), base, "f16", adapted=False)
    return {kind: work / kind for kind in KINDS}


def trained(model: Path, rows: list[str], steps: int, work: Path) -> Path:
    """A run of so many steps on these rows: an end that was reached is not made again."""
    (work / "rows.jsonl").write_text("".join(rows), encoding="utf-8")
    tree = {
        "model": str(model),
        "data": {"files": [str(work / "rows.jsonl")], "held_out": 0.05},
        "adapter": {"r": 16, "alpha": 32},
        "train": {"steps": steps, "effective_batch": 8, "lr": 1e-3},
        "evaluate": {"generate": 0},
    }
    write_json(work / "c.yaml", tree)
    command = [sys.executable, "-m", "holdfast", "train", str(work / "c.yaml"), "--run", str(work / "run")]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return work / "run"


def loaded(folder: Path, bare: bool = False) -> tuple[Any, Any]:
    """(tokenizer, model) of an adapter or a merged model, as anybody would load them; bare: of the adapter's base alone."""
    base = read_json(folder / "adapter_config.json")
    if base:
        from peft import PeftModel

        place = base["base_model_name_or_path"]
        own = getattr(transformers, transformers.AutoConfig.from_pretrained(place).architectures[0])
        model = own.from_pretrained(place, dtype=torch.float32)
        model = model if bare else PeftModel.from_pretrained(model, folder)
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return transformers.AutoTokenizer.from_pretrained(folder), model.eval()


def by_transformers(folder: Path, questions: list[str], longest: int, bare: bool = False) -> Answers:
    """Token ids of the prompts, and of the answers, as `generate` of the loaded model gives them."""
    tokenizer, model = loaded(folder, bare)
    prompts, answers = [], []
    for question in questions:
        ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False)
        with torch.no_grad():
            found = model.generate(input_ids=torch.tensor([ids]), do_sample=False, max_new_tokens=longest)[0, len(ids) :].tolist()
        prompts.append(ids)
        ends = model.generation_config.eos_token_id
        answers.append([token for token in found if token not in (ends if isinstance(ends, list) else [ends])])
    return prompts, answers


def partings(folder: Path, sides: dict[str, Answers], longest: int) -> dict[str, list[dict[str, float]]]:
    """Where each side's answers part from the adapter's: after how many tokens, and by how much the adapter's logit of its own token is
    above that of the other's there. 0 is a tie; a side whose logits are off by more than half of it may choose the other.
    """
    _, model = loaded(folder)
    ends = model.generation_config.eos_token_id
    end = ends[0] if isinstance(ends, list) else ends
    prompts, answers = sides["adapter"]
    told: dict[str, list[dict[str, float]]] = {}
    for name, (_, given) in sides.items():
        told[name] = []
        for prompt, one, other in zip(prompts, answers, given, strict=True):
            if one != other:
                one, other = ((ids + [end] * longest)[:longest] for ids in (one, other))  # who ended says the end
                at = next(at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
                with torch.no_grad():
                    logits = model(input_ids=torch.tensor([prompt + one[:at]])).logits[0, -1]
                told[name].append({"after": at, "by": round(float(logits[one[at]] - logits[other[at]]), 4)})
    return told


def by_llama_cpp(file: Path, questions: list[str], longest: int, work: Path, lora: Path | None = None) -> Answers:
    """The same of a GGUF file: prompts by its own template and tokenizer; what it lacks of a prompt's opening is its template's fault."""
    asked: dict[str, Any] = {
        "model": str(file),
        "lora": [str(lora)] if lora else [],
        "threads": 2,
        "context": 1024,
        "longest": longest,
        "texts": [],
        "end": None,
    }
    asked |= {"places": [], "whole": [], "most": 1, "vocabulary": 1, "pad": 0, "prompts": []}

    def ask(name: str, **more: Any) -> dict[str, Any]:
        write_json(work / f"{name}-request.json", asked | {"out": str(work / name), "chats": []} | more)
        subprocess.run([sys.executable, "-m", "holdfast.export.gguf.engine", str(work / f"{name}-request.json")], check=True)
        return read_json(work / f"{name}.json") or {}

    prompts = ask("chats", chats=[[{"role": "user", "content": question}] for question in questions])["chats"]
    return prompts, [answer["ids"] for answer in ask("answers", prompts=prompts)["answers"]]


def by_serve(run: Path, questions: list[str], longest: int) -> list[str]:
    """The answers of `holdfast serve`, as texts."""
    command = [sys.executable, "-m", "holdfast", "serve", str(run), "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {ready['token']}"}
        answers = []
        for question in questions:
            body = {"model": "tuned", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": longest}
            request = urllib.request.Request(ready["url"] + "/v1/chat/completions", json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=600) as answer:
                answers.append(json.load(answer)["choices"][0]["message"]["content"])
        return answers
    finally:
        server.terminate()
        server.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run, or with --steps a model")
    parser.add_argument("rows", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--longest", type=int, default=48)
    parser.add_argument("--types", default="f16,q8_0", help="of GGUF")
    parser.add_argument("--steps", type=int, default=0, help="of a run that is made first")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    arguments.work.mkdir(parents=True, exist_ok=True)
    with arguments.rows.open(encoding="utf-8") as rows:
        lines = list(rows)
    questions = [json.loads(line)["instruction"] for line in lines[: arguments.prompts]]
    run = arguments.run
    if arguments.steps:
        run = trained(run.absolute(), lines[arguments.prompts :], arguments.steps, arguments.work.absolute())
    folders = exported(run, arguments.work, arguments.types)
    sides = {kind: by_transformers(folders[kind], questions, arguments.longest) for kind in ("adapter", "merged")}
    sides["base"] = by_transformers(folders["adapter"], questions, arguments.longest, bare=True)
    for file in sorted(folders["gguf"].glob("*.gguf")):
        sides[file.stem.rpartition("-")[2]] = by_llama_cpp(file, questions, arguments.longest, arguments.work)
    (lora,) = folders["gguf-adapter"].glob("*.gguf")
    base = arguments.work / "base-f16.gguf"
    sides["gguf-adapter"] = by_llama_cpp(base, questions, arguments.longest, arguments.work, lora)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["adapter"])
    served = [one.strip() for one in by_serve(run, questions, arguments.longest)]
    prompts, answers = sides["adapter"]
    texts = [tokenizer.decode(one, skip_special_tokens=True).strip() for one in answers]
    bare = sides.pop("base")
    parted = partings(folders["adapter"], sides, arguments.longest)
    told: dict[str, Any] = {
        name: {
            "prompts_alike": sum(one == other for one, other in zip(prompts, theirs, strict=True)),
            "answers_alike": sum(one == other for one, other in zip(answers, given, strict=True)),
            "part": parted[name],
        }
        for name, (theirs, given) in sides.items()
        if name != "adapter"
    }
    told["base"] = {"answers_alike": sum(one == other for one, other in zip(answers, bare[1], strict=True))}
    told["serve"] = {"answers_alike": sum(one == other for one, other in zip(texts, served, strict=True))}
    print(json.dumps({"questions": len(questions), "tokens": int(np.sum([len(one) for one in answers])), **told}))


if __name__ == "__main__":
    main()
