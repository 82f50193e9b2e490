"""Have a command of holdfast do something and take its answer. In a session of its own: Ctrl-C reaches it through us alone."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import yaml

from holdfast.base.child import module_command
from holdfast.base.errors import INTERRUPTED, OUR_BUG, Stop
from holdfast.base.files import Json
from holdfast.base_model.folder import EMBEDDED

Given = str | Path | Mapping[str, Any]
P = ParamSpec("P")
T = TypeVar("T")
_LOOK_S = 0.2
_RESUMES = "the same call resumes it"
_PATHS = (("data", "files"), ("data", "held_out_files"), ("data", "weights"), ("adapter", "start"), ("", "model"))
_KEPT = 40  # last lines of what it said, for an error that it could not name


def plainly(function: Callable[P, T]) -> Callable[P, T]:
    """Raise a Stop without the frames it came through, which say nothing to who called."""

    @functools.wraps(function)
    def called(*given: P.args, **named: P.kwargs) -> T:
        try:
            return function(*given, **named)
        except Stop as stop:
            raise stop.with_traceback(None) from None

    return called


def ask(
    words: list[str], look: Callable[[], None] | None = None, told: Callable[[str], None] | None = None, fine: tuple[int, ...] = (0,)
) -> Json:
    """Run `holdfast WORDS --json` to its end and return its answer.

    look: is called a few times a second meanwhile. told: gets each line that it says; where there is none, it says them itself, on
    standard error. A KeyboardInterrupt here is Ctrl-C there: it is passed on, and the command ends in its own time.
    fine: exit codes that are no error. Raises Stop as the command does.
    """
    command = module_command("holdfast", *words, "--json")
    said: collections.deque[str] = collections.deque(maxlen=_KEPT)
    answer: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if told is None else subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        readers = [threading.Thread(target=_read, args=(child.stdout, answer.append), daemon=True)]
        if child.stderr is not None:
            readers.append(threading.Thread(target=_read, args=(child.stderr, said.append, told), daemon=True))
        for reader in readers:
            reader.start()
        while True:
            try:
                child.wait(_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                if look is not None:
                    look()
            except KeyboardInterrupt:
                child.send_signal(signal.SIGINT)
        for reader in readers:
            reader.join()
    return _judged("".join(answer), child.returncode, said, fine)


def _read(stream: Any, *listeners: Callable[[str], Any] | None) -> None:
    for line in stream:
        for listener in filter(None, listeners):
            listener(line)


def interrupted(answer: Json | None = None) -> Stop:
    """Return the error of a run that was stopped and can go on."""
    return Stop(INTERRUPTED, "interrupted; what was trained is saved", _RESUMES, answer)


def in_python(text: str) -> str:
    """Return what a command says with the ways to resume a run as Python has them: nobody types a command there."""
    text = re.sub(r"(rerun the same command to resume|resume with: holdfast .*)", _RESUMES, text)
    return text.replace("rerun the same command", "make the same call again").replace("--run DIR", "folder=DIR")


def _judged(text: str, code: int, said: collections.deque[str], fine: tuple[int, ...]) -> Json:
    """Return the answer of a command that has ended. Raises Stop where it is an error."""
    try:
        answer: Json = json.loads(text)
    except ValueError:
        text = "".join(said).strip() or f"holdfast ended with exit code {code} and no answer"
        raise Stop(OUR_BUG, text, "this is a bug in holdfast, not in your run; please report it with these lines") from None
    if "error" in answer:
        raise Stop(answer["code"], in_python(answer["error"]), in_python(answer["hint"]), answer)
    if code == INTERRUPTED:
        raise interrupted(answer)
    if code not in fine:
        why = f"{answer.get('status')} after step {answer.get('steps')}: {answer.get('reason')}"
        raise Stop(code, why, "its best state is kept; the run folder's report.html tells all", answer)
    return answer


@contextlib.contextmanager
def file_of(tree: Mapping[str, Any], name: str) -> Iterator[Path]:
    """Write a mapping to a file of this name, which is there for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="holdfast-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / name
        if file.suffix == ".json":
            file.write_text(json.dumps(tree), encoding="utf-8")
        else:
            write_tree(tree, file)
        yield file


def write_tree(tree: Mapping[str, Any], file: Path) -> None:
    """Write a mapping as YAML, its paths that are there made absolute, since they are the current folder's."""
    tree = {name: dict(value) if isinstance(value, Mapping) else value for name, value in tree.items()}
    for section, name in _PATHS:
        holder = tree.get(section) if section else tree
        if isinstance(holder, dict) and name in holder:
            holder[name] = _absolute(holder[name])
    file.write_text(yaml.safe_dump(_plain(tree), sort_keys=False, allow_unicode=True), encoding="utf-8")


def _absolute(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_absolute(name): weight for name, weight in value.items()}
    if isinstance(value, list | tuple):
        return [_absolute(one) for one in value]
    known = isinstance(value, str | Path) and value not in EMBEDDED and Path(value).expanduser().exists()
    return str(Path(value).expanduser().resolve()) if known else value


def as_settings(overrides: Mapping[str, Any], above: str = "") -> list[str]:
    """Return `key.path=value` for each: train={"lr": 1e-4} is train.lr=0.0001, and so is {"train.lr": 1e-4}.

    A mapping whose keys have dots of their own, as weights of files have, is one value.
    """
    settings: list[str] = []
    for name, value in overrides.items():
        if isinstance(value, Mapping) and not any("." in str(key) for key in value):
            settings += as_settings(value, f"{above}{name}.")
        else:
            settings.append(f"{above}{name}={_as_yaml(value)}")
    return settings


def _as_yaml(value: Any) -> str:
    """Format a value as YAML on one line."""
    return yaml.safe_dump([_plain(value)], default_flow_style=True, width=1 << 20, allow_unicode=True).strip()[1:-1]


def _plain(value: Any) -> Any:
    """Convert a value to what YAML takes: paths to texts, tuples to lists."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value
