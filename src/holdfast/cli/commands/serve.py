"""`holdfast serve RUN`: base and tuned model behind one OpenAI-compatible endpoint, on this machine alone.

Given a name of `holdfast models`, it serves the version that is in place, and follows: one that is promoted or rolled back to later takes
over without a restart, when it is loaded; answers that had begun are ended by the one that began them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson

from holdfast.base.errors import DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.units import listed
from holdfast.base.versions import __version__, install
from holdfast.base.wait import Flag
from holdfast.data.token_set.token_set import load_tokens
from holdfast.data.tokens.codec import Codec
from holdfast.export.registry import read_registry, registry_file
from holdfast.export.subject import Subject, read_subject, subject_codec
from holdfast.report.pages import page_template
from holdfast.serve.endpoint import refuse_port, token_of
from holdfast.serve.engines import MODELS, Engine, LlamaCpp, Transformers
from holdfast.serve.experts import RoutedExperts, expert_model, read_experts, stamp_of
from holdfast.serve.follow import VersionFollower, in_place, shown, subject_of
from holdfast.serve.gateway import open_gateway
from holdfast.serve.preferences import Blind, kept, tally
from holdfast.serve.served import GatewayState, ServedModel, served_models
from holdfast.serve.vllm import Vllm
from holdfast.supervision.launch import measuring_environment

EXAMPLE = "holdfast serve runs/first --port 8080 --ab"
ENGINES = ("llama.cpp", "transformers", "vllm")
_LOOK_S = 1.0  # how often the list of models is looked at
_UNTOLD = 2048  # positions of a model that does not say how many it has
_CONTEXT = 8192  # tokens that llama.cpp reserves memory for where nothing is asked: all positions of a model of today are tens of GiB
_WHAT = "a finished run, one of its checkpoints, a PEFT folder, or a name of `holdfast models`: its version in place, followed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", type=Path, metavar="RUN|ADAPTER", help=_WHAT)
    parser.add_argument("--port", type=int, default=0, metavar="N", help="of 127.0.0.1 (default: one that is free)")
    parser.add_argument("--engine", choices=ENGINES, help="what generates (default: llama.cpp where it can, else transformers)")
    parser.add_argument("--engine-url", metavar="URL", help="where the vLLM of --engine vllm listens; adapters are loaded into it by name")
    parser.add_argument(
        "--context",
        type=int,
        metavar="TOKENS",
        help="of prompt and answer together; llama.cpp reserves memory for them "
        f"(default: there {_CONTEXT}, or the run's longest row if that is more; elsewhere all that the model takes)",
    )
    parser.add_argument("--ab", action="store_true", help="a page that shows both answers blind and records which one you prefer")
    parser.add_argument(
        "--ab-models",
        type=_pair,
        metavar="A,B",
        help="the two that --ab compares (default: base,tuned), such as tuned,routed",
    )
    parser.add_argument("--preferences", type=Path, metavar="FILE", help="where --ab keeps them (default: preferences.jsonl in the run)")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="where the token stands; made where it is not (default: another one each time)"
    )
    parser.add_argument("--base", metavar="DIR", help="where the base model is, if not where the run says")
    parser.add_argument("--json", dest="ready_line", action="store_true", help="print one line of JSON with url and token when ready")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    refuse_port(arguments.port)
    if arguments.engine_url and arguments.engine != "vllm":
        raise Stop(USAGE, "--engine-url is for --engine vllm", "give both, or neither")
    file, name = registry_file(os.environ), _name(arguments.subject)
    version = in_place(file, name) if name else None
    subject = subject_of(version, arguments.base) if version else read_subject(arguments.subject, arguments.base)
    preferences = _preferences(arguments, subject, file.parent / "serve" / name if name else None)
    if arguments.ab_models:
        _refuse_unknown(arguments.ab_models, served_models(_experts(subject, arguments.base, say=lambda _: None)))
    state = GatewayState(token_of(arguments.token_file))
    stopped = Flag()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with tempfile.TemporaryDirectory(prefix="holdfast-serve-", ignore_cleanup_errors=True) as work:

        def make(subject: Subject, name: str) -> ServedModel:
            return _served(arguments, subject, name, Path(tempfile.mkdtemp(dir=work)))

        if preferences:
            state.blind = Blind(preferences, arguments.ab_models or MODELS)
            state.page = page_template("ab.html").render(models=state.blind.models, name=name or subject.name, version=__version__)
        with contextlib.ExitStack() as closing:
            server = closing.enter_context(open_gateway(state, arguments.port))
            state.served = make(subject, shown(version) if version else subject.name)
            closing.callback(lambda: state.served.engine.close())
            threading.Thread(target=server.serve_forever, daemon=True).start()
            _tell(arguments, state, f"http://127.0.0.1:{server.server_address[1]}")
            following = VersionFollower(file, name, version, state, make, _say, arguments.base) if name and version else None
            while not stopped.wait(_LOOK_S if following else None):
                if following:
                    following.look()
            server.shutdown()
        if state.blind:
            _tell_preferred(state.blind)
    return DONE, {}


def _pair(text: str) -> tuple[str, str]:
    """Parse --ab-models. Raises ArgumentTypeError."""
    first, comma, second = text.partition(",")
    if not (first and comma and second) or first == second or "," in second:
        raise argparse.ArgumentTypeError(f"{text!r} is not two models with a comma between them, such as tuned,routed")
    return first, second


def _name(given: Path) -> str | None:
    """Return the name of `holdfast models` that was given; None for a path. Raises Stop(2) for neither."""
    if given.exists() or str(given) != given.name:
        return None
    file = registry_file(os.environ)
    names = read_registry(file).names
    if str(given) not in names:
        known = listed(sorted(names)) if names else "nothing yet"
        raise Stop(
            USAGE, f"{given} is not a folder here, and no name of a model: {file} lists {known}", "give a finished run, or one of these"
        )
    return str(given)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _served(arguments: argparse.Namespace, subject: Subject, name: str, work: Path) -> ServedModel:
    """Load a model. Raises Stop(2) where there is no adapter that could be switched on and off."""
    if subject.whole is not None:
        text = f"{subject.name} has no adapter that could be switched on and off: serve holds one set of base weights for both"
        raise Stop(USAGE, text, f"vllm serve {subject.tuned}, or holdfast export {subject.tuned.parent} --to gguf for llama-server")
    codec, stamp = subject_codec(subject), stamp_of(subject.run.path if subject.run else None)
    most = subject.longest_row or max(_UNTOLD, arguments.context or 0)
    if arguments.context is not None and not 0 < arguments.context <= most:
        raise Stop(USAGE, f"--context {arguments.context:,}: {subject.name} takes 1 to {most:,} tokens", "leave it out, or give so many")
    experts = _experts(subject, arguments.base, _say)
    engine = _engine(arguments, subject, codec, work, _say, experts)
    if experts and isinstance(engine, Vllm) and engine.left_out:
        _say(f"! {engine.left_out}")
        experts = experts.without_merged()
    context = engine.context if isinstance(engine, LlamaCpp) else arguments.context or most
    longer = f"start it with --context TOKENS, of up to {most:,}" if context < most else ""
    served = ServedModel(codec, name, context, engine, experts=experts, stamp=stamp, longer=longer)
    if isinstance(engine, Vllm):
        served.turns = threading.BoundedSemaphore(engine.at_once)
    return served


def _reserved(asked: int | None, subject: Subject) -> int:
    """Return how many tokens of prompt and answer llama.cpp is to reserve memory for."""
    longest = 0
    with contextlib.suppress(OSError, ValueError):  # rows that are not here any more
        longest = int(np.diff(load_tokens(subject.run.data_file).starts).max()) if subject.run else 0
    return min(asked or max(_CONTEXT, longest), subject.longest_row or asked or _UNTOLD)


def _experts(subject: Subject, base: str | None, say: Callable[[str], None]) -> RoutedExperts | None:
    """Return the experts that can be switched between; None where there are none."""
    experts = read_experts(subject, base)
    if experts and any(one.config.get("trainable_token_indices") for one in experts.adapters):
        say("! its experts have trained tokens of their own, which cannot be switched: the adapter for all answers")
        return None
    return experts


def _engine(
    arguments: argparse.Namespace, subject: Subject, codec: Codec, work: Path, say: Callable[[str], None], experts: RoutedExperts | None
) -> Engine:
    """Choose llama.cpp where it is there and can take base and adapter; else transformers, and say why."""
    environment = measuring_environment(subject.run)
    adapters = dict(zip(map(expert_model, experts.names), experts.adapters, strict=True)) if experts else {}
    if arguments.engine == "vllm":
        return Vllm(arguments.engine_url, subject, codec, adapters)
    if arguments.engine != "transformers":
        lacking = [name for name in ("xllamacpp", "gguf") if importlib.util.find_spec(name) is None]
        try:
            if lacking:
                raise Stop(USAGE, f"llama.cpp needs the package {lacking[0]}", install("ship"))
            return LlamaCpp(subject, codec, work, environment, say, adapters, _reserved(arguments.context, subject))
        except Stop as stop:
            if arguments.engine:
                raise
            say(f"transformers generates, because {stop.message}")
    return Transformers(subject, codec, work, environment, say, adapters)


def _refuse_unknown(pair: tuple[str, str], models: list[str]) -> None:
    """Raise Stop(2) for a pair to compare that is not served."""
    for name in pair:
        if name not in models:
            raise Stop(USAGE, f"--ab-models: there is no model {name!r} here", f"two of {listed(models)}")


def _preferences(arguments: argparse.Namespace, subject: Subject, shared: Path | None) -> Path | None:
    """Return the file of votes; None without --ab. shared: the folder of a name's, whose versions come and go.

    Raises Stop(2), and Stop(1) for votes that cannot be read.
    """
    if not arguments.ab:
        for name in ("preferences", "ab_models"):
            if getattr(arguments, name):
                raise Stop(USAGE, f"--{name.replace('_', '-')} is for --ab", "give both, or neither")
        return None
    folder = shared or (subject.run.path if subject.run else Path.cwd())
    if shared and not arguments.preferences:
        shared.mkdir(parents=True, exist_ok=True)
    file: Path = (arguments.preferences or folder / "preferences.jsonl").expanduser().absolute()
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise Stop(USAGE, f"{file} cannot be written", "give another --preferences FILE")
    tally(file)
    return file


def _tell_preferred(blind: Blind) -> None:
    """Print which model was preferred, of each version: at the end, when no vote follows that could know it."""
    found = blind.by_version()
    for name, counts in found.items():
        first, second = blind.models
        said = f"{second} preferred {counts[second]}, {first} {counts[first]}"
        said += f", no difference {counts['same']} (sign test p = {counts['p_value']:.2g})"
        print(f"{blind.file}: {f'{name}: ' * (len(found) > 1)}{said}", file=sys.stderr, flush=True)


def _tell(arguments: argparse.Namespace, state: GatewayState, url: str) -> None:
    page = f"{url}/?token={state.token}" if state.blind else None
    if arguments.ready_line:
        facts: Json = {
            "url": url,
            "token": state.token,
            "engine": state.served.engine.name,
            "serves": state.served.name,
            "models": state.served.models,
            "context": state.served.context,
            "page": page,
        }
        print(orjson.dumps(facts).decode(), flush=True)
        return
    served = state.served
    lines = [f"{served.name} and its base, by {served.engine.name}: {url}/v1  (models: {', '.join(served.models)}; Ctrl-C ends)"]
    lines.append(f"token: {state.token}")
    lines.append(f"context: {served.context:,} tokens of prompt and answer" + f"; for more {served.longer}" * bool(served.longer))
    if state.blind:
        lines += [f"page:  {page}", f"preferences: {state.blind.file} ({kept(state.blind.tally())} so far)"]
    print("\n".join(lines), flush=True)
