"""How fast rows are checked, beside the tokenizer alone on texts in memory and beside `datasets.map`, in turn; and the peak memory.

    python benchmarks/data_check.py --tokenizer DIR rows.jsonl [rows2.jsonl ...] [--rounds 3] [--made 10000 1000000]

Each contender runs in a process of its own with two cores. `--peers PYTHON` is the interpreter that has `datasets` and `transformers`,
`--juicer PYTHON` the one that has data-juicer; without them these are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

WORKERS = 2


def texts_of(file: str, tokenizer: str) -> Iterator[list[str]]:
    """The texts that training would tokenise, row by row."""
    from holdfast.data.judge.rules import Rules
    from holdfast.data.tokens.codec import load_codec
    from holdfast.data.tokens.shard import blocks, readable

    codec = load_codec(Path(tokenizer))
    for block in blocks(file):
        yield from ([text for text, _ in pieces] for _, pieces in readable(block, Rules(), codec)[0])


def cpu_seconds() -> float:
    """Of this process, its threads and the children it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def tokenizer_alone(file: str, tokenizer: str, threads: int = WORKERS, at_once: int = 256) -> dict[str, float]:
    """The tokenizer on texts in memory, in two threads of Python, 256 at a time: the fastest way found. Nothing else is counted."""
    from holdfast.data.tokens.codec import load_codec

    os.environ["TOKENIZERS_PARALLELISM"] = "false" if threads > 1 else "true"
    texts = [text for row in texts_of(file, tokenizer) for text in row]
    fresh = load_codec(Path(tokenizer)).tokenizer

    def count(start: int) -> int:
        return sum(map(len, fresh.encode_batch_fast(texts[start : start + at_once], add_special_tokens=False)))

    began, spent = time.perf_counter(), cpu_seconds()
    with ThreadPoolExecutor(threads) as pool:
        tokens = sum(pool.map(count, range(0, len(texts), at_once)))
    return {"seconds": time.perf_counter() - began, "cpu": cpu_seconds() - spent, "tokens": tokens}


def tokenizer_own_threads(file: str, tokenizer: str) -> dict[str, float]:
    """The same with the threads of the `tokenizers` package, 2,048 texts at a time, as most programs call it."""
    return tokenizer_alone(file, tokenizer, 1, 2048)


def check(file: str, tokenizer: str) -> dict[str, float]:
    """`data check` with all default checks."""
    command = [sys.executable, "-m", "holdfast", "data", "check", file, "--tokenizer", tokenizer, "--workers", str(WORKERS), "--json"]
    spent = cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    cpu = cpu_seconds() - spent
    return {"seconds": answer["seconds"], "cpu": cpu, "tokens": answer["tokens"]["total"], "rows": answer["rows"], "peak_mib": peak}


def datasets_map(file: str, tokenizer: str) -> dict[str, float]:
    """What many scripts do: load, apply the template and tokenise in batches with two processes; no row is checked."""
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as cache:
        began, spent = time.perf_counter(), cpu_seconds()
        rows = datasets.load_dataset("json", data_files=file, split="train", cache_dir=cache)
        theirs = AutoTokenizer.from_pretrained(tokenizer)

        def tokenise(batch: dict[str, list[Any]]) -> dict[str, Any]:
            texts = []
            for question, extra, answer in zip(batch["instruction"], batch["input"], batch["output"], strict=True):
                prompt = f"{question}\n{extra}" if extra else question
                turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
                texts.append(theirs.apply_chat_template(turns, tokenize=False) if theirs.chat_template else prompt + answer)
            return {"input_ids": theirs(texts)["input_ids"]}

        found = rows.map(tokenise, batched=True, num_proc=WORKERS, remove_columns=rows.column_names)
        found_after = {"seconds": time.perf_counter() - began, "cpu": cpu_seconds() - spent}
        return found_after | {"tokens": sum(map(len, found["input_ids"]))}


def data_juicer(file: str, tokenizer: str) -> dict[str, float]:
    """data-juicer's operators that come nearest to the checks, two processes each; question and answer as one text."""
    import datasets
    from data_juicer.core.data import NestedDataset
    from data_juicer.ops import load_ops

    datasets.disable_progress_bars()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    names = ("fix_unicode_mapper", "clean_email_mapper", "character_repetition_filter", "special_characters_filter", "text_length_filter")
    wanted: list[dict[str, dict[str, Any]]] = [{name: {"num_proc": WORKERS}} for name in names]
    wanted += [{"token_num_filter": {"hf_tokenizer": tokenizer, "num_proc": WORKERS}}]
    wanted += [{name: {}} for name in ("document_deduplicator", "document_minhash_deduplicator")]
    with tempfile.TemporaryDirectory() as cache:
        began, spent = time.perf_counter(), cpu_seconds()
        rows = datasets.load_dataset("json", data_files=file, split="train", cache_dir=cache)
        joined = rows.map(
            lambda row: {"text": "\n".join(filter(None, (row["instruction"], row["input"], row["output"])))}, num_proc=WORKERS
        )
        found = NestedDataset(joined.select_columns(["text"]))
        for operator in load_ops(wanted):
            found = found.process(operator)
        return {"seconds": time.perf_counter() - began, "cpu": cpu_seconds() - spent, "tokens": 0, "left": len(found)}


CONTENDERS = {
    "tokenizer alone": tokenizer_alone,
    "tokenizer, its own threads": tokenizer_own_threads,
    "data check": check,
    "datasets.map": datasets_map,
    "data-juicer": data_juicer,
}


def made(count: int, folder: Path) -> Path:
    """`count` rows of four lengths, of which one in a thousand cannot be trained on."""
    file = folder / f"{count}.jsonl"
    with file.open("w") as handle:
        for n in range(count):
            answer = "" if n % 1000 == 999 else f"Row {n} says {n * 7919 % 1_000_003} and {n * 104_729 % 999_983}. " * (1 + n % 4)
            handle.write(json.dumps({"instruction": f"What does row {n} say, and of what?", "input": "", "output": answer}) + "\n")
    return file


def measured(name: str, file: str, tokenizer: str, python: str = sys.executable) -> dict[str, float]:
    """One contender in a fresh process."""
    command = [python, __file__, "--one", name, "--tokenizer", tokenizer, file]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--made", type=int, nargs="*", default=[])
    parser.add_argument("--peers", metavar="PYTHON", help="the interpreter that has datasets and transformers")
    parser.add_argument("--juicer", metavar="PYTHON", help="the interpreter that has data-juicer")
    parser.add_argument("--one", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(CONTENDERS[arguments.one](arguments.files[0], arguments.tokenizer)))
        return
    others = {"datasets.map": arguments.peers, "data-juicer": arguments.juicer}
    pythons = {name: others.get(name, sys.executable) for name in CONTENDERS}
    names = [name for name in CONTENDERS if pythons[name]]
    columns = ("rows of", "contender", "s", "CPU s", "rows/s", "MB/s", "tokens/s", "of the tokenizer's rate", "of its CPU time")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for file in arguments.files:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(arguments.rounds):
            for name in names:
                runs[name].append(measured(name, file, arguments.tokenizer, pythons[name]))
        rows, size = runs["data check"][0]["rows"], Path(file).stat().st_size / 1e6
        medians = {name: statistics.median(run["seconds"] for run in found) for name, found in runs.items()}
        for name, seconds in medians.items():
            speed = f"{rows / seconds:,.0f} | {size / seconds:.2f} | {runs[name][0]['tokens'] / seconds:,.0f}"
            share = medians["tokenizer alone"] / seconds
            cpu = {each: statistics.median(run["cpu"] for run in found) for each, found in runs.items()}
            cost = f"{share:.2f} | {cpu[name] / cpu['tokenizer alone']:.2f}"
            print(f"| {Path(file).name} | {name} | {seconds:.2f} | {cpu[name]:.2f} | {speed} | {cost} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for count in arguments.made:
            found = measured("data check", str(made(count, Path(folder))), arguments.tokenizer)
            seconds, peak = found["seconds"], found["peak_mib"]
            print(f"{count:,} made rows: {seconds:.1f} s, {count / seconds:,.0f} rows/s, largest process {peak:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
