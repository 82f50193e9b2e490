"""`make demo-real`: fine-tune SmolLM2-135M on made rows, verify it with an interval, ask it, export it to GGUF, and serve it.

With --short a few steps of each: what runs is the same, and little is learned.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import IO

RUN = Path("runs/real")
ROWS = Path("runs/real-rows")
GGUF = Path("runs/real-gguf")
CONFIG = "examples/real.yaml"
QUESTION = "Use torch.zeros to create zeros with 64 rows, 16 columns and float32."
SHORT = ["train.epochs=null", "train.steps=4", "train.warmup=1", "evaluate.generate=2"]


def announce(text: str) -> None:
    print(f"\n--- demo: {text} ---", flush=True)


def holdfast(*arguments: str) -> list[str]:
    print(f"\n$ holdfast {' '.join(arguments)}", flush=True)
    return [sys.executable, "-m", "holdfast", *arguments]


def do(*arguments: str, json_to: Path | None = None) -> None:
    """Run one command of holdfast. Raises CalledProcessError where it fails. json_to: where its JSON object goes."""
    if json_to is None:
        subprocess.run(holdfast(*arguments), check=True)
        return
    with json_to.open("wb") as output:
        subprocess.run(holdfast(*arguments, "--json"), check=True, stdout=output)


def verify(short: bool) -> str:
    """Measure base against tuned on rows that were held out; the result in a sentence."""
    file = RUN / "verified.json"
    do("verify", str(RUN), "--generate", "2" if short else "20", "--longest", "48", json_to=file)
    found = json.loads(file.read_text())
    loss = found["loss"]
    low, high = loss["interval"]
    return (
        f"verdict {found['verdict']}: on {found['rows']} held-out rows {loss['base']:.3f} (base) -> {loss['tuned']:.3f} (tuned), "
        f"difference {loss['difference']:.3f}, 95% interval {low:.3f} to {high:.3f}"
    )


def serve() -> str:
    """Start the server, ask it once as any client of OpenAI's does, end it; the answer."""
    server = subprocess.Popen(holdfast("serve", str(RUN), "--port", "0", "--json"), stdout=subprocess.PIPE, text=True)
    try:
        ready = json.loads(_line(server.stdout))
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 48, "temperature": 0}
        address = f"{ready['url'].split('/?')[0].rstrip('/')}/v1/chat/completions"
        head = {"Authorization": f"Bearer {ready['token']}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), head), timeout=300) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])
    finally:
        server.terminate()
        server.wait()


def _line(output: IO[str] | None) -> str:
    line = output.readline() if output else ""
    if not line:
        raise SystemExit("the server ended before it was ready")
    return line


def main(short: bool) -> int:
    os.chdir(Path(__file__).parent.parent)
    for folder in (RUN, GGUF):
        shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    made = subprocess.run([sys.executable, "scripts/real_models.py", "smollm2"], check=False, stdout=subprocess.PIPE, text=True)
    if made.returncode:
        return made.returncode
    try:
        do("data", "make", "--rows", "800", "--out", str(ROWS / "train.jsonl"), "--held-out", str(ROWS / "held-out.jsonl"))
        do("train", CONFIG, f"model={made.stdout.strip()}", *(SHORT if short else []))
        told = verify(short)
        announce(told)
        do("chat", str(RUN), QUESTION, "--max-new-tokens", "48")
        do("export", str(RUN), "--to", "gguf", "--quantise", "q8_0", "--out", str(GGUF))
        announce(f"served, and asked over HTTP: {serve()}")
    except subprocess.CalledProcessError as failed:
        return failed.returncode
    announce(f"done in {time.monotonic() - began:.0f} s; {told}")
    print(f"    the report: {RUN / 'report.html'}    the model for llama.cpp and Ollama: {GGUF}\n", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main("--short" in sys.argv[1:]))
