"""The programs that generate, each in a child with one set of base weights: llama.cpp with a scaled LoRA, or transformers."""

from __future__ import annotations

import hashlib
import os
import threading
import urllib.request
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson

from holdfast.base.cache import cache_folder
from holdfast.base.child import module_command, trainer_command
from holdfast.base.files import Json, remove_abandoned, write_json
from holdfast.base.versions import __version__
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.plain_form import written_template
from holdfast.export.endings import end_tokens, pad_token
from holdfast.export.gguf.convert import sixteen, write_gguf, write_gguf_adapter
from holdfast.export.subject import Subject
from holdfast.machine.system import usable_threads
from holdfast.serve.child import PATIENCE_S, Child

MODELS = ("base", "tuned")
_BEFORE = 8  # tokens of a prompt that decide how the first one behind them is written


@dataclass(frozen=True)
class AnswerRequest:
    """One answer: of which of MODELS, or of an engine's experts, to which tokens, how long at most and how drawn (temperature 0: greedy).

    stop: texts before which it ends; tell_usage: a stream's last part says how many tokens there were; goes_on: its text is what follows
    the prompt's, and no answer of its own: a first word has the space that parts it from the prompt.
    """

    model: str
    ids: list[int]
    longest: int
    temperature: float
    top_p: float
    seed: int
    stop: tuple[str, ...] = ()
    tell_usage: bool = False
    goes_on: bool = False


class Engine(Protocol):
    """stream: (text, tokens it is, why it ended or None) as it comes; the last one has a reason.

    One of a process has `trouble`, too: why it cannot answer now, "" where it can.
    """

    name: str

    def stream(self, wanted: AnswerRequest) -> Generator[tuple[str, int, str | None], None, None]: ...
    def close(self) -> None: ...


class LlamaCpp:
    """llama.cpp's server, behind a key of its own, in a process that dies with this one's pipe.

    context: tokens of prompt and answer, whose keys and values it reserves for each of two at once when it starts.
    """

    name = "llama.cpp"

    def __init__(
        self,
        subject: Subject,
        codec: Codec,
        work: Path,
        env: Mapping[str, str],
        say: Callable[[str], None],
        experts: Mapping[str, Subject] | None = None,
        context: int = 2048,
    ) -> None:
        self.context = context
        base = _base_in_gguf(subject, codec, work, env, say)
        adapters = {"tuned": subject, **(experts or {})}
        self._names = [*adapters]
        lora = [str(work / f"adapter-{number}.gguf") for number in range(len(adapters))]
        for one, file in zip(adapters.values(), lora, strict=True):
            write_gguf_adapter(one, Path(file))
        request: Json = {"model": str(base), "lora": lora, "threads": usable_threads(), "slots": 2}
        write_json(work / "serve.json", request | {"context": context})
        command = module_command("holdfast.serve.llama", work / "serve.json")
        self._child = Child(command, work / "engine.log", env)

    def stream(self, wanted: AnswerRequest) -> Generator[tuple[str, int, str | None], None, None]:
        body = {"prompt": wanted.ids, "n_predict": wanted.longest, "stream": True, "temperature": wanted.temperature, "seed": wanted.seed}
        body |= {"top_p": wanted.top_p, "samplers": ["temperature", "top_p"], "cache_prompt": True}  # and none that nobody asked for
        body |= {"lora": [{"id": number, "scale": float(wanted.model == name)} for number, name in enumerate(self._names)]}
        with self._child.asked() as hear:
            ready = self._child.ready
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {ready['key']}"}
            request = urllib.request.Request(ready["url"] + "/completion", orjson.dumps(body), headers)
            told = 0  # tokens; a part has several where a character, or what may become one, has
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                for line in answer:
                    if not line.startswith(b"data: {"):
                        continue
                    part = orjson.loads(line[6:])
                    hear()
                    ended, stop, text = part.get("stop_type") == "eos", part.get("stop"), part.get("content", "")
                    made = int(part.get("tokens_predicted", told + (not stop))) - ended
                    new = max(0, made - told) if text or stop else 0  # one without text may be the end, which is none of the answer's
                    told += new
                    if stop:
                        yield text, new, "stop" if part.get("stop_type") in ("eos", "word") else "length"
                        return
                    yield text, new, None
            raise RuntimeError("the model's answer broke off")

    @property
    def trouble(self) -> str:
        return self._child.trouble

    def close(self) -> None:
        self._child.close()


def _base_in_gguf(subject: Subject, codec: Codec, work: Path, env: Mapping[str, str], say: Callable[[str], None]) -> Path:
    """Return the base model as GGUF, cached under the hash of all it says: converting a large one takes minutes."""
    kind = sixteen(subject)
    name = f"{hash_of_base(subject, codec)[:32]}-{kind}.gguf"
    cache = cache_folder(os.environ)
    folder = cache / "gguf" if cache else work
    file = folder / name
    if not file.is_file():
        say(f"converting {subject.base_name} for llama.cpp, once: {file}")
        folder.mkdir(parents=True, exist_ok=True)
        remove_abandoned(file)
        staged = file.with_name(f".{name}.0.{os.getpid()}.tmp")
        try:
            write_gguf(subject, codec, staged, kind, adapted=False)
            staged.replace(file)
        finally:
            staged.unlink(missing_ok=True)
    return file


def hash_of_base(subject: Subject, codec: Codec) -> str:
    """Hash what a base in GGUF holds: its weights and tokenizer, and where answers end, which the template that was trained says."""
    said = [end_tokens(codec, subject.facts), pad_token(codec, subject.facts), codec.bos, written_template(codec), __version__]
    return hashlib.sha256(orjson.dumps([subject.hashes()["base_sha256"], *said])).hexdigest()


class Transformers:
    """A child with torch, transformers and PEFT; one answer at a time, one JSON object a line each way."""

    name = "transformers"

    def __init__(
        self,
        subject: Subject,
        codec: Codec,
        work: Path,
        env: Mapping[str, str],
        say: Callable[[str], None],
        experts: Mapping[str, Subject] | None = None,
    ) -> None:
        request: Json = {**subject.loaded(), "threads": usable_threads(), "held": subject.held()}
        request |= {"experts": {name: str(one.tuned) for name, one in (experts or {}).items()}}
        write_json(work / "serve.json", request | {"ends": end_tokens(codec, subject.facts), "pad": codec.pad})
        self._child = Child(trainer_command("serve", work / "serve.json"), work / "engine.log", env)
        self._lock, self._codec, self._number = threading.Lock(), codec, 0
        for told in self._child.ready.get("told", ()):
            say(told)

    def stream(self, wanted: AnswerRequest) -> Generator[tuple[str, int, str | None], None, None]:
        with self._lock, self._child.asked() as hear:
            self._number += 1
            self._send({"number": self._number, **vars(wanted)})
            before = wanted.ids[-_BEFORE:] if wanted.goes_on else []
            ids: list[int] = [*before]
            told = self._codec.tokenizer.decode(ids, skip_special_tokens=True)
            ended = False
            try:
                while not ended:
                    part = self._next(self._number)
                    hear()
                    ended = "end" in part or "error" in part
                    if "error" in part:
                        raise RuntimeError(part["error"])
                    ids += [] if ended else [part["id"]]
                    text = self._codec.tokenizer.decode(ids, skip_special_tokens=True)
                    if not ended and text.endswith("\ufffd"):  # a part of a character waits for the rest
                        yield "", 1, None
                        continue
                    yield text[len(told) :], int(not ended), part.get("end")
                    told = text
            finally:
                if not ended and self._child.process.poll() is None:  # who asked has gone: nobody else gets the rest
                    self._send({"cancel": self._number})
                    while not {"end", "error"} & self._next(self._number).keys():
                        pass

    def _send(self, told: Json) -> None:
        assert self._child.process.stdin
        self._child.process.stdin.write(orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE))
        self._child.process.stdin.flush()

    def _next(self, number: int) -> Json:
        """Read the child's next line of a request. Raises RuntimeError where the child has ended, or answers another one."""
        assert self._child.process.stdout
        line = self._child.process.stdout.readline()
        part: Json = orjson.loads(line) if line.endswith(b"\n") else {}
        if part.get("of") != number:
            raise RuntimeError("the model's process has ended" if not part else f"the model answers request {part.get('of')}, not {number}")
        return part

    @property
    def trouble(self) -> str:
        return self._child.trouble

    def close(self) -> None:
        self._child.close()
