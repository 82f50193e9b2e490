"""`holdfast serve RUN`: base and tuned model behind one OpenAI-compatible endpoint, on this machine alone."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import secrets
import signal
import sys
import tempfile
import threading
from pathlib import Path

import orjson

from holdfast.base.errors import DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.versions import __version__
from holdfast.data.tokens.codec import Codec
from holdfast.export.subject import Subject, read_subject, subject_codec
from holdfast.report.pages import page_template
from holdfast.serve.endpoint import refuse_port
from holdfast.serve.engines import MODELS, Engine, LlamaCpp, Transformers
from holdfast.serve.gateway import State, open_gateway
from holdfast.serve.preferences import Blind, kept, tally
from holdfast.supervision.launch import measuring_environment

EXAMPLE = "holdfast serve runs/first --port 8080 --ab"
ENGINES = ("llama.cpp", "transformers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", type=Path, metavar="RUN|ADAPTER", help="a finished run, one of its checkpoints, or a PEFT folder")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="of 127.0.0.1 (default: one that is free)")
    parser.add_argument("--engine", choices=ENGINES, help="what generates (default: llama.cpp where it can, else transformers)")
    parser.add_argument("--ab", action="store_true", help="a page that shows both answers blind and records which one you prefer")
    parser.add_argument("--preferences", type=Path, metavar="FILE", help="where --ab keeps them (default: preferences.jsonl in the run)")
    parser.add_argument("--base", metavar="DIR", help="where the base model is, if not where the run says")
    parser.add_argument("--json", dest="ready_line", action="store_true", help="print one line of JSON with url and token when ready")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    refuse_port(arguments.port)
    subject = read_subject(arguments.subject, arguments.base)
    if subject.whole is not None:
        text = f"{subject.name} has no adapter that could be switched on and off: serve holds one set of base weights for both"
        raise Stop(USAGE, text, f"vllm serve {subject.tuned}, or holdfast export {arguments.subject} --to gguf for llama-server")
    codec = subject_codec(subject)
    preferences = _preferences(arguments, subject)
    token = secrets.token_urlsafe(24)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with tempfile.TemporaryDirectory(prefix="holdfast-serve-") as work:
        state = State(codec, subject.name, subject.facts.positions or 2048, token)
        if preferences:
            state.blind = Blind(preferences, subject.name)
            state.page = page_template("ab.html").render(name=subject.name, version=__version__)
        server = open_gateway(state, arguments.port)
        with contextlib.closing(_engine(arguments, subject, codec, Path(work))) as state.engine, server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            _tell(arguments, state, f"http://127.0.0.1:{server.server_address[1]}")
            stopped.wait()
            server.shutdown()
        if state.blind:
            _tell_preferred(state.blind.file)
    return DONE, {}


def _engine(arguments: argparse.Namespace, subject: Subject, codec: Codec, work: Path) -> Engine:
    """llama.cpp where it is there and can take base and adapter; else transformers, and why."""
    environment = measuring_environment(subject.run)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if arguments.engine != "transformers":
        lacking = [name for name in ("xllamacpp", "gguf") if importlib.util.find_spec(name) is None]
        try:
            if lacking:
                raise Stop(USAGE, f"llama.cpp needs the package {lacking[0]}", "pip install 'holdfast[ship]'")
            return LlamaCpp(subject, codec, work, environment, say)
        except Stop as stop:
            if arguments.engine:
                raise
            say(f"transformers generates, because {stop.message}")
    return Transformers(subject, codec, work, environment, say)


def _preferences(arguments: argparse.Namespace, subject: Subject) -> Path | None:
    if not arguments.ab:
        if arguments.preferences:
            raise Stop(USAGE, "--preferences is for --ab", "give both, or neither")
        return None
    folder = subject.run.path if subject.run else Path.cwd()
    file: Path = (arguments.preferences or folder / "preferences.jsonl").expanduser().absolute()
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise Stop(USAGE, f"{file} cannot be written", "give another --preferences FILE")
    return file


def _tell_preferred(file: Path) -> None:
    """Which model was preferred: at the end, when no vote follows that could know it."""
    counts = tally(file)
    if kept(counts):
        said = f"tuned preferred {counts['tuned']}, base {counts['base']}, no difference {counts['same']}"
        print(f"{file}: {said} (sign test p = {counts['p_value']:.2g})", file=sys.stderr, flush=True)


def _tell(arguments: argparse.Namespace, state: State, url: str) -> None:
    page = f"{url}/?token={state.token}" if state.blind else None
    if arguments.ready_line:
        facts: Json = {"url": url, "token": state.token, "engine": state.engine.name, "models": MODELS, "page": page}
        print(orjson.dumps(facts).decode(), flush=True)
        return
    lines = [f"{state.name} and its base, by {state.engine.name}: {url}/v1  (models: {', '.join(MODELS)}; Ctrl-C ends)"]
    lines.append(f"token: {state.token}")
    if state.blind:
        lines += [f"page:  {page}", f"preferences: {state.blind.file} ({kept(tally(state.blind.file))} so far)"]
    print("\n".join(lines), flush=True)
