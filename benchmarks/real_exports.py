"""Whether three exports of one run answer alike: the adapter by PEFT, the merged model by transformers, GGUF by llama.cpp.

    python benchmarks/real_exports.py RUN ROWS.jsonl WORK [--prompts 50] [--longest 48]

WORK: a folder for the exports (made where missing; what is there is used again). Each reads its own files alone, chat template and
tokenizer too, answers greedily, and is held against the adapter: one JSON object. Rows have `instruction` and `output`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from holdfast.base.files import read_json, write_json

KINDS = {"adapter": [], "merged": [], "gguf": ["--quantise", "f16,q8_0"]}


def exported(run: Path, work: Path) -> dict[str, Path]:
    """The folders of the three exports."""
    for kind, more in KINDS.items():
        if not (work / kind).exists():
            command = [sys.executable, "-m", "holdfast", "export", str(run), "--to", kind, "--out", str(work / kind), *more]
            subprocess.run(command, check=True, stdout=sys.stderr)
    return {kind: work / kind for kind in KINDS}


def by_transformers(folder: Path, questions: list[str], longest: int) -> tuple[list[list[int]], list[list[int]]]:
    """(token ids of the prompts, of the answers) of an adapter or a merged model, loaded as anybody would."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    base = read_json(folder / "adapter_config.json")
    model = transformers.AutoModelForCausalLM.from_pretrained(base["base_model_name_or_path"] if base else folder, dtype=torch.float32)
    if base:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, folder)
    prompts, answers = [], []
    for question in questions:
        ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False)
        with torch.no_grad():
            found = model.generate(input_ids=torch.tensor([ids]), do_sample=False, max_new_tokens=longest)[0, len(ids) :].tolist()
        prompts.append(ids)
        answers.append([token for token in found if token != model.generation_config.eos_token_id])
    return prompts, answers


def by_llama_cpp(file: Path, questions: list[str], longest: int, work: Path) -> tuple[list[list[int]], list[list[int]]]:
    """The same of a GGUF file: prompts by its own template and tokenizer; what it lacks of a prompt's opening is its template's fault."""
    asked: dict[str, Any] = {"model": str(file), "lora": [], "threads": 2, "context": 1024, "longest": longest, "texts": [], "end": None}
    asked |= {"places": [], "whole": [], "most": 1, "vocabulary": 1, "pad": 0, "prompts": []}

    def ask(name: str, **more: Any) -> dict[str, Any]:
        write_json(work / f"{name}-request.json", asked | {"out": str(work / name), "chats": []} | more)
        subprocess.run([sys.executable, "-m", "holdfast.export.gguf.engine", str(work / f"{name}-request.json")], check=True)
        return read_json(work / f"{name}.json") or {}

    prompts = ask("chats", chats=[[{"role": "user", "content": question}] for question in questions])["chats"]
    return prompts, [answer["ids"] for answer in ask("answers", prompts=prompts)["answers"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--longest", type=int, default=48)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    arguments.work.mkdir(parents=True, exist_ok=True)
    with arguments.rows.open(encoding="utf-8") as rows:
        questions = [json.loads(line)["instruction"] for line in rows][: arguments.prompts]
    folders = exported(arguments.run, arguments.work)
    sides = {kind: by_transformers(folders[kind], questions, arguments.longest) for kind in ("adapter", "merged")}
    for file in sorted(folders["gguf"].glob("*.gguf")):
        sides[file.stem.rpartition("-")[2]] = by_llama_cpp(file, questions, arguments.longest, arguments.work)
    prompts, answers = sides.pop("adapter")
    told = {
        name: {
            "prompts_alike": sum(one == other for one, other in zip(prompts, theirs, strict=True)),
            "answers_alike": sum(one == other for one, other in zip(answers, given, strict=True)),
            "tokens_until_they_part": [
                next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
                for one, other in zip(answers, given, strict=True)
                if one != other
            ],
        }
        for name, (theirs, given) in sides.items()
    }
    print(json.dumps({"questions": len(questions), "tokens": int(np.sum([len(one) for one in answers])), **told}))


if __name__ == "__main__":
    main()
