"""A second start of a command's Python that waits with its imports done. None of the command's own code runs before it is needed.

Where an attempt runs, `note` writes down what it has imported by its first step. The standby is the same command line with
HOLDFAST_STANDBY in its environment: sitecustomize, which Python runs before it opens the script, calls `wait`. That imports the same
installed packages in the same order, then reads its standard input: one line makes it the next attempt (its arguments, environment and
streams), and Python goes on to the script as in any start; an end of the input ends it. Whatever would make another start of it than a
plain one ends it, too, with the reason on standard error; a plain start follows. Standard library only.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import importlib
import json
import os
import random
import resource
import signal
import sys
import sysconfig
from pathlib import Path
from typing import Any

STANDBY, MODULES = "HOLDFAST_STANDBY", "modules.json"  # the variable is DESCRIPTOR:FILE
READY, TAKEN = b"r", b"t"  # what it writes to the descriptor
_OWN = ("HOLDFAST_", "TORCH_NCCL_", "TORCH_FR_")  # variables that differ from attempt to attempt, and that no import reads
_NICER = 5  # while it imports, where its priority can be had back
_DEATH_SIGNAL, _SYS_NICE = 1, 23
_MADE = ("holdfast", "_remote_module_non_scriptable")  # ours, and one that torch writes into a temporary folder while it is imported
_PLACES = tuple({os.path.join(sysconfig.get_paths()[name], "") for name in ("stdlib", "platstdlib")})  # noqa: PTH118


class Unfit(Exception):
    """This process would be another start than a plain one."""


def note(attempt: Path) -> None:
    """Write down what this process has imported, in order: (name, file); and which variables changed before which module."""
    changes = getattr(sys.modules.get("sitecustomize"), "changes", None)
    if changes is None:
        return
    before: dict[str, dict[str, str | None]] = {}
    pending: dict[str, str | None] = {}
    for name, changed in changes:
        pending |= changed
        if name in sys.modules:
            before[name], pending = pending, {}
    told = {"pid": os.getpid(), "modules": _loaded(), "changes": before}
    temporary = attempt / f"{MODULES}.tmp"
    temporary.write_text(json.dumps(told), encoding="utf-8")
    temporary.replace(attempt / MODULES)


def changed(before: dict[str, str], now: dict[str, str]) -> dict[str, str | None]:
    """Return the variables that are not as they were, None for one that is gone."""
    return {name: now.get(name) for name in {*before, *now} if before.get(name) != now.get(name)}


def _loaded() -> list[tuple[str, str]]:
    specs = [(name, getattr(module, "__spec__", None)) for name, module in list(sys.modules.items())]
    return [(name, spec.origin) for name, spec in specs if spec is not None and spec.name == name and isinstance(spec.origin, str)]


def wait(order: str) -> None:
    """Import, wait for the order to become an attempt, and become it. Ends the process where it is not to be one."""
    descriptor, _, file = order.partition(":")
    try:
        _die_with_parent(signal.SIGKILL)
        packages = _packages()
        with _humble():
            literals = _set_by_script()
            set_here = _import(json.loads(Path(file).read_text(encoding="utf-8")), literals)
        os.write(int(descriptor), READY)
        if not (line := _line()):
            os._exit(0)
        told = json.loads(line)
        if packages != _packages() or literals != _set_by_script():
            raise Unfit("packages or the script have changed since")
        _become(told, set_here)
        os.write(int(descriptor), TAKEN)
        os.close(int(descriptor))
    except BaseException as error:  # noqa: BLE001  (the script must not run)
        print(f"holdfast: no standby: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _die_with_parent(number: int) -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, number, 0, 0, 0)


def _packages() -> list[tuple[str, int]]:
    """Return the folders that packages are imported from, with their times of change: an installation changes them."""
    return [(place, os.stat(place).st_mtime_ns) for place in sys.path if os.path.isdir(place)]  # noqa: PTH112, PTH116


@contextlib.contextmanager
def _humble() -> Any:
    """Let others go first, for the processor and where memory runs out. Raises OSError where that cannot be taken back."""
    score, own = Path("/proc/self/oom_score_adj"), os.getpriority(os.PRIO_PROCESS, 0)
    before = score.read_text()
    score.write_text("1000")
    capable = int(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")), 16)
    may = capable >> _SYS_NICE & 1 or resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20 - own
    if may:
        os.setpriority(os.PRIO_PROCESS, 0, own + _NICER)
    yield
    if may:
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208  (those that imports have started, too)
            os.setpriority(os.PRIO_PROCESS, int(thread), own)
    score.write_text(before)


def _set_by_script() -> dict[str, str]:
    """Return the variables that the script sets to a text, whatever happens: in statements of their own, outside of any block."""
    found: dict[str, str] = {}
    if not os.path.isfile(sys.argv[0]):  # noqa: PTH113
        return found
    with open(sys.argv[0], "rb") as handle:
        tree = ast.parse(handle.read())
    for one in tree.body:
        name: ast.expr
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Subscript):
            where, name, value = ast.unparse(one.targets[0].value), one.targets[0].slice, one.value
        elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call) and len(one.value.args) == 2:
            where, (name, value) = ast.unparse(one.value.func).removesuffix(".setdefault"), one.value.args
        else:
            continue
        if where in ("os.environ", "environ") and isinstance(name, ast.Constant) and isinstance(value, ast.Constant):
            found[str(name.value)] = str(value.value)
    return found


def _import(noted: dict[str, Any], literals: dict[str, str]) -> dict[str, str]:
    """Import what an attempt had imported, up to where its environment was changed by more than `literals`; return which of them were set.

    Raises Unfit where that is another process than a plain start has at that point.
    """
    there, drawn = set(sys.modules), random.getstate()
    set_here: dict[str, str] = {}
    for name, origin in noted["modules"]:
        if name in sys.modules or not is_installed(origin):
            continue
        missing = {one: value for one, value in noted["changes"].get(name, {}).items() if os.environ.get(one) != value}
        if any(value is None or literals.get(one) != value for one, value in missing.items()):
            break
        os.environ.update(missing)
        set_here |= missing
        importlib.import_module(name)
    _prove(dict(noted["modules"]), there)
    if random.getstate() != drawn:
        raise Unfit("an import has drawn random numbers")
    return set_here


def is_installed(origin: str) -> bool:
    """True for a module of Python's own or of an installed package: the command's own files run in attempts alone."""
    return origin in ("built-in", "frozen") or "-packages/" in origin or origin.startswith(_PLACES)


def _prove(origins: dict[str, str], there: set[str]) -> None:
    """Raise Unfit where a module has come from elsewhere than in the attempt, a device is in use, or random numbers were drawn."""
    for name, origin in _loaded():
        if name in there or name.partition(".")[0] in _MADE or not os.path.isabs(origin):  # noqa: PTH117  (one that has no file)
            continue
        if not is_installed(origin) or origins.get(name, origin) != origin:
            raise Unfit(f"{name} is of {origin}")
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None:
        if torch.cuda.is_initialized():
            raise Unfit("an import has begun to use the GPU")
        if not torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(torch.initial_seed()).get_state()):
            raise Unfit("an import has drawn torch's random numbers")
    if numpy is not None and numpy.random.get_state()[2:4] not in ((623, 0), (624, 0)):
        raise Unfit("an import has drawn numpy's random numbers")


def _line() -> bytes:
    """Read one line of standard input, without Python's buffer. What comes without an end of line is none."""
    found = b""
    while not found.endswith(b"\n"):
        if not (read := os.read(0, 1 << 16)):
            return b""
        found += read
    return found


def _become(told: dict[str, Any], set_here: dict[str, str]) -> None:
    """Take the arguments, environment and streams of an attempt. Raises Unfit where it is of another command or environment.

    What packages have set stays, what we set for the script goes.
    """
    head = len(sys.orig_argv) - len(sys.argv)
    if told["argv"][1 : head + 1] != sys.orig_argv[1 : head + 1]:
        raise Unfit("it is another command")
    other = [name for name in changed(told["before"], told["environment"]) if not name.startswith(_OWN)]
    if other:
        raise Unfit(f"its environment has changed: {', '.join(sorted(other))}")
    os.chdir(told["folder"])
    _take_streams(told)
    sys.argv[1:], sys.orig_argv[1:] = told["argv"][head + 1 :], told["argv"][1:]
    kept = changed(told["before"] | set_here, dict(os.environ))
    os.environ.clear()
    os.environ.update({name: value for name, value in (told["environment"] | kept).items() if value is not None})
    _die_with_parent(0)


def _take_streams(told: dict[str, Any]) -> None:
    """Put the attempt's input and output in the place of ours."""
    file, at = told["stdin"] or (os.devnull, 0)
    source = os.open(file, os.O_RDONLY)
    if at:
        os.lseek(source, at, os.SEEK_SET)
    output = os.open(
        told["output"], os.O_RDWR if told["terminal"] else os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
    )  # ours to control, as its leader
    for descriptor, place in ((source, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    os.close(source)
    os.close(output)
    sys.stdin = sys.__stdin__ = open(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    if told["terminal"] and not os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
