"""holdfast's processes by a fork in place of an exec: torch, transformers and PEFT are imported once, not once per process.

`install` starts a stem, a process that has imported them and computed nothing. From then on `python -m holdfast...`, asked for through
`subprocess`, is a fork of it: a process of its own, the child of the one that asked for it, with the files, environment, signals and
command line that an exec gives. A process that itself starts others brings a stem of its own, forked before it did anything.

Where the simulated card's folder is on PYTHONPATH, what it does at a start is done in the fork, torch being there already. Such
processes have a stem of their own, which loads the card's library before torch: what torch found then, it finds for ever.

Where a test asks for it (`HOLDFAST_TESTS_FORK` in the environment: a simulated card's library, or nothing), a Python file is a fork,
too, and so is what has another PYTHONPATH: modules are looked for there unless they are imported already.

What differs from an exec: torch is in `sys.modules` of a process that never asks for it, and what the loader or glibc read at a start
(LD_PRELOAD, MALLOC_*) is the stem's. So anything that changes what Python or torch read at their start is still an exec, and so is
everything with HOLDFAST_TESTS_EXEC in its environment.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import importlib.util
import json
import os
import pickle
import pkgutil
import random
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
import traceback
import types
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXEC, FORK = "HOLDFAST_TESTS_EXEC", "HOLDFAST_TESTS_FORK"
_CARD, _CARD_SITE = "SIMULATED_CARD", str(Path(__file__).parents[1] / "simulated" / "site")
_ROOM = 16384  # bytes for a command line, kept free in the stem's own
_HIGH = 512  # descriptors from here on are ours
_HUGE, _COLLAPSE = 2 << 20, 25  # a huge page's bytes; madvise: make them now. Kernels before 6.1 know no such thing, and nothing changes
_SUBREAPER = 36  # prctl: a process whose parent died becomes the child of the nearest ancestor that asked for it
# as trainers have them: what is read when torch and what lies below it are loaded
LOADED_WITH = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
_READ_BY_PYTHON = ("PYTHON", "LD_", "LC_", "LANG", _CARD)
_READ_BY_RANKS = ("TORCH_NCCL_", "TORCH_FR_")  # when the first group of them is made
_READ_BY_TORCH = ("HF_", "TRANSFORMERS_", "TORCH", "PYTORCH", "KMP", "MKL", "ATEN", "DNNL", "ONEDNN", "GOMP")
# the second is set by an import; the last two, like all that a card's own libraries read, are read when a card is first asked for
_TOLD_LATER = ("PYTHONUNBUFFERED", "TORCHINDUCTOR_CACHE_DIR", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NVML_BASED_CUDA_CHECK")
_READ_AGAIN = ("HF_ENDPOINT", "HF_HOME", "HF_TOKEN")  # in the fork, where a test has a hub of its own
_CHILDLESS = ("holdfast.trainer", "holdfast.processes.writer", "holdfast.machine.readings.keep")  # and what starts somebody else's command
_VERBS = (
    "models",
    "status",
    "diagnose",
    "explain",
    "schema",
    "completion",
    "report",
    "stop",
    "--version",
    "--help",
)  # and commands

_libc = ctypes.CDLL(None)
_exec = getattr(subprocess, "_fork_exec", None)  # not part of its interface; where it has another name, all is an exec


class Stem:
    """The near end of a stem's socket. `born_with`: the environment of what is forked from it. `library`: of a simulated card, or none."""

    def __init__(self, channel: socket.socket | Callable[[], socket.socket], born_with: dict[str, str], library: str, pid: int) -> None:
        """channel: what starts the process and gives its socket, where that is still to be done."""
        self.begin = channel if callable(channel) else lambda: channel
        self.born_with, self.library, self.pid = born_with, library, pid
        self.lock, self.asked = threading.Lock(), 0

    @functools.cached_property
    def channel(self) -> socket.socket:
        return self.begin()

    def suits(self, args: list[str], environment: dict[str, str]) -> bool:
        """Whether a fork is what an exec of `args` would be."""
        module = next(iter(_module(args)), "")
        card = _card_of(environment)
        if (card.get("library") or "") != self.library or (module == "holdfast.trainer" and "gone_after" in card):
            return False
        environment = _without_card(environment)
        forks = FORK in environment if module.endswith(".py") else module.partition(".")[0] == "holdfast"
        if args[:1] != [sys.executable] or EXEC in environment or not forks:
            return False
        read = _READ_BY_PYTHON + (_READ_BY_TORCH if module == "holdfast.trainer" else ())
        told, born = _of((LOADED_WITH if module == "holdfast.trainer" else {}) | environment, read), _of(self.born_with, read)
        return (told | {"PYTHONPATH": ""} == born | {"PYTHONPATH": ""}) if FORK in environment else told == born

    def spawn(self, order: dict[str, Any], descriptors: list[int]) -> int:
        """A new child of this process; its pid."""
        with self.lock:
            self.asked += 1
            _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self.channel, [pickle.dumps(order | {"number": self.asked})], descriptors)
                while True:
                    number, pid = map(int, self.channel.recv(64).split())
                    if number == self.asked:  # not the answer to a request that a signal broke off
                        return pid
            finally:
                _libc.prctl(_SUBREAPER, 0, 0, 0, 0)


def _card_of(environment: dict[str, str]) -> dict[str, Any]:
    """The simulated card that a fork can be given: any but a Radeon, which torch has to see when it is loaded."""
    first = environment.get("PYTHONPATH", "").partition(os.pathsep)[0]
    if first != _CARD_SITE:
        return {"library": environment.get(FORK, "")}
    card: dict[str, Any] = json.loads(environment.get(_CARD, "{}"))
    return {} if "hip" in card else card


def _without_card(environment: dict[str, str]) -> dict[str, str]:
    """The same without a simulated card that a fork can be given."""
    if not _card_of(environment) or not environment.get("PYTHONPATH", "").startswith(_CARD_SITE):
        return environment
    rest = environment["PYTHONPATH"].partition(os.pathsep)[2]
    kept = {name: value for name, value in environment.items() if name not in (_CARD, "PYTHONPATH")}
    return kept | ({"PYTHONPATH": rest} if rest else {})


def _module(args: list[str]) -> list[str]:
    """The module, or Python file, and its arguments of `python [-P] -m ...` or `python FILE`; nothing of another command."""
    if args[1:] and args[1].endswith(".py"):
        return args[1:]
    rest = args[2:] if args[1:2] == ["-P"] else args[1:]
    return rest[1:] if rest[:1] == ["-m"] else []


def _of(environment: dict[str, str], beginnings: tuple[str, ...]) -> dict[str, str]:
    later = {name for name in environment if name in (*_TOLD_LATER, *_READ_AGAIN) or name.startswith(_READ_BY_RANKS)}
    return {name: value for name, value in environment.items() if name.startswith(beginnings) and name not in later}


def take_terminal() -> None:
    """In a session of its own: have standard input for the controlling terminal. A `preexec_fn` that a stem knows."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def install() -> None:
    """Have this process's `subprocess` fork what a stem can. It starts when it is first needed and ends with this process."""
    if _exec is None or sys.platform != "linux" or EXEC in os.environ:
        return
    stems: dict[str, Stem] = {}

    def stem_of(environment: dict[str, str]) -> Stem:
        library = _card_of(environment).get("library") or ""
        if library not in stems:
            stems[library] = _new(library)
        return stems[library]

    _use(stem_of)


def _new(library: str) -> Stem:
    """A stem of the process that asks; it starts when it is first needed."""
    environment = dict(os.environ | LOADED_WITH)

    def begin() -> socket.socket:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            command = [sys.executable, __file__, str(far.fileno()), library, "=" * _ROOM]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, pass_fds=[far.fileno()])
        atexit.register(lambda: (near.close(), process.wait()))
        return near

    return Stem(begin, environment, library, 0)


def _use(stem_of: Callable[[dict[str, str]], Stem]) -> None:
    def fork_exec(args: list[Any], executables: Any, close_fds: bool, keep: tuple[int, ...], cwd: Any, listed: Any, *more: Any) -> int:
        names = [os.fsdecode(part) for part in args]
        environment = dict(os.environ) if listed is None else dict(os.fsdecode(entry).split("=", 1) for entry in listed)
        reads, writes, errors, untold, new_session, before = more[0], more[3], more[5], more[7], more[9], more[-2]
        stem = stem_of(environment)
        nameable = before is None or "<" not in before.__qualname__
        if not close_fds or not nameable or not stem.suits(names, environment):
            assert _exec is not None
            return int(_exec(args, executables, close_fds, keep, cwd, listed, *more))
        files = {at: at if file < 0 else file for at, file in enumerate((reads, writes, errors))}
        files |= {file: file for file in keep if file != untold}
        order = {
            "args": names,
            "environment": environment,
            "folder": str(Path.cwd()) if cwd is None else os.fsdecode(cwd),
            "new_session": new_session,
            "files": list(files),
            "before": before,
            "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN],
            "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        }
        return stem.spawn(order, list(files.values()))

    subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]


def _serve(channel: socket.socket, born_with: dict[str, str], library: str) -> None:
    """Fork what is ordered until the other end is closed. Never returns."""
    while True:
        message, files, _, _ = socket.recv_fds(channel, 1 << 20, 64)
        if not message:
            os._exit(0)
        between = os.fork()
        if not between:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:
                os.sched_yield()
            _be(pickle.loads(message), files, channel, born_with, library)
        for file in files:
            os.close(file)
        os.waitpid(between, 0)


def _be(order: dict[str, Any], files: list[int], channel: socket.socket, born_with: dict[str, str], library: str) -> None:
    """Be the process that is ordered, to its end."""
    module, *arguments = _module(order["args"])
    alone = module in _CHILDLESS or "--command" in arguments[:1] or (module == "holdfast" and not set(_VERBS).isdisjoint(arguments[:1]))
    stem = None if alone else _another(channel, files, born_with, library)
    if order["new_session"]:
        os.setsid()
    _name(order["args"])
    channel.send(f"{order['number']} {os.getpid()}".encode())
    channel.detach()
    _lay(order["files"], files, stem)
    _set_signals(order["ignored"], order["blocked"])
    if order["before"] is not None:
        order["before"]()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    if "HF_ENDPOINT" in os.environ:
        importlib.reload(sys.modules["huggingface_hub.constants"])  # whose names are asked for when they are needed
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through=unbuffered)  # type: ignore[union-attr]
    random.seed()
    if stem is not None:
        _use(lambda _environment: stem)
    else:
        subprocess._fork_exec = _exec  # type: ignore[attr-defined]
    code = _run(module, arguments, safely=order["args"][1] == "-P")
    if stem is not None:
        stem.channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(stem.pid, 0)
    os._exit(code)


def _another(channel: socket.socket, files: list[int], born_with: dict[str, str], library: str) -> Stem:
    """A stem of this process's own, forked before it does anything."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        for file in [near.detach(), channel.detach(), *files]:
            os.close(file)
        _serve(far, born_with, library)
    far.close()
    return Stem(near, born_with, library, pid)


def _lay(numbers: list[int], files: list[int], stem: Stem | None) -> None:
    """Have these files at these numbers and no others, but for the stem's."""
    high = max(_HIGH, *numbers) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, high) for file in files]
    if stem is not None:
        stem.channel = socket.socket(fileno=fcntl.fcntl(stem.channel.detach(), fcntl.F_DUPFD_CLOEXEC, high))
    os.closerange(3, high)
    for number, file in zip(numbers, moved, strict=True):
        os.dup2(file, number)
        os.close(file)


def _set_signals(ignored: list[int], blocked: list[int]) -> None:
    """As an exec leaves them and Python sets them at its start."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError):  # those glibc keeps for itself
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _name(args: list[str]) -> None:
    """Write the command line where the kernel shows it from."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    shown = b"".join(os.fsencode(part) + b"\0" for part in args)[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, shown, len(shown))


def _run(module: str, arguments: list[str], safely: bool) -> int:
    """`python -m module`, or `python -P -m module`; its exit code."""
    script = module.endswith(".py")
    if safely:
        del sys.path[0]
    else:
        sys.path[0] = str(Path(module).parent if script else Path.cwd())
    if FORK in os.environ:
        sys.path[1 - safely : 1 - safely] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [module if script else "-m", *arguments]
    sys.orig_argv = [sys.executable, *(["-P"] if safely else []), *([] if script else ["-m"]), module, *arguments]
    if _CARD in os.environ:
        sys.path.insert(1 - safely, _CARD_SITE)
        runpy.run_path(str(Path(_CARD_SITE, "sitecustomize.py")))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
            if script:
                runpy.run_path(module, run_name="__main__")
            else:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
        code: Any = 0
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001  (as the interpreter does)
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return (code or 0) & 0xFF


def _load(library: str) -> None:
    """Import what holdfast's processes import. Nothing is computed: threads would not live through a fork.

    library: of a simulated card, which has no device as long as no process says so.
    """
    if library:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL).card_devices(0)
    from holdfast.book import cards_of, shelves
    from holdfast.report.pages import page_template
    from holdfast.trainer.common import libraries

    with libraries.libraries():
        import holdfast

        for found in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
            last = found.name.rpartition(".")[2]
            if last not in ("__main__", "shim", "writer", "cluster", "ray") and ".kernels." not in found.name:
                importlib.import_module(found.name)
        for name in ("auto", "qwen2"):
            importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        with contextlib.suppress(ImportError):  # transformers 4 has none
            from transformers.conversion_mapping import get_checkpoint_conversion_mapping

            get_checkpoint_conversion_mapping("qwen2")  # 900 regular expressions, compiled once
        for shelf in shelves():  # 2,000 regular expressions of its cards
            cards_of(shelf)
    page_template("report.html")
    libraries._read_models_once = lambda: None
    _forget_exits()
    gc.freeze()
    _use_huge_pages()


def _use_huge_pages() -> None:
    """Have what is in memory in pages of 2 MiB where the kernel makes them: a fork then copies a list of hundreds, not of 90,000."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        places, rights, _, _, _, *named = line.split()
        if rights == "rw-p" and named in ([], ["[heap]"]):
            begin, end = (int(place, 16) for place in places.split("-"))
            begin, end = -(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE
            if begin < end:
                _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _COLLAPSE)


def _forget_exits() -> None:
    """Let no fork do what torch does at its end for what it loaded: it touches 40 MB, and tells of compiled code that is none here."""
    for loaded in weakref.finalize._registry.values():  # type: ignore[attr-defined]  # 180 libraries of operators
        loaded.atexit = False
    for module, name in (("_dynamo.utils", "dump_compile_times"), ("_subclasses.fake_tensor", "dump_cache_stats")):
        if (told := getattr(sys.modules.get(f"torch.{module}"), name, None)) is not None:
            atexit.unregister(told)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=int(sys.argv[1]))
    environment, library = dict(os.environ), sys.argv[2]
    sys.modules["support"] = types.ModuleType("support")
    sys.modules["support"].__path__ = [str(Path(__file__).parent)]
    sys.modules["support.forked"] = sys.modules["__main__"]  # for `before`
    _load(library)
    _serve(end, environment, library)
