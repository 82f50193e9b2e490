"""Try damaged input in this process: an exit code and a sentence, in bounded time and memory, nothing beside its place written."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from holdfast.base.errors import Stop
from holdfast.cli.main import main
from holdfast.config.load import load_config
from holdfast.supervision.preparation.lock import held
from holdfast.supervision.preparation.prepare import open_run
from holdfast.terminal.run_view import Terminal

LONGEST_CPU_S, LONGEST_S, MOST_BYTES = 20.0, 300.0, 1 << 30  # on a busy machine only the first says how much it is
PART = float(os.environ.get("HOLDFAST_HOSTILE", "1"))
MACHINE = {"os": {"kernel": "6.8"}, "python": "3.11", "memory_bytes": 32 << 30, "torch": {"version": "2.9.1+cpu"}, "gpus": []}


class TooLong(BaseException):
    """Not an Exception: what is tried must not catch it."""


@contextlib.contextmanager
def bounded(what: str) -> Iterator[None]:
    """Ends what takes too long, and fails where it took much memory."""

    def ring(number: int, _: object) -> None:
        spent = f"{LONGEST_CPU_S:.0f} CPU seconds" if number == signal.SIGPROF else f"{LONGEST_S:.0f} s"
        raise TooLong(f"{what}: not done after {spent}")

    old = [(number, signal.signal(number, ring)) for number in (signal.SIGALRM, signal.SIGPROF)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limits = resource.getrlimit(resource.RLIMIT_AS)
    held_now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held_now + 2 * MOST_BYTES, limits[1]))
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_CPU_S)
    try:
        yield
    except TooLong as late:
        raise AssertionError(str(late)) from None
    finally:
        for timer in (signal.ITIMER_REAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for number, handler in old:
            signal.signal(number, handler)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MOST_BYTES, f"{what}: {grown >> 20:,} MiB more"


def answers(what: str, *arguments: object, codes: tuple[int, ...] = (0, 1, 2, 3)) -> str:
    """Run a command in this process; its output. It ends with one of the codes, says so in words, and as JSON where asked."""
    out, err = io.StringIO(), io.StringIO()
    with bounded(what), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    said = f"{what}\n$ holdfast {' '.join(map(str, arguments))}\n{out.getvalue()[-1500:]}{err.getvalue()[-3000:]}"
    assert code in codes and "Traceback" not in err.getvalue(), f"exit code {code}: {said}"
    assert "\x1b" not in out.getvalue() + err.getvalue(), f"an escape code reaches the terminal: {said!r}"
    assert code == 0 or err.getvalue().strip() or out.getvalue().strip(), f"no word: {said}"
    if "--json" in arguments:
        json.loads(out.getvalue())
    return out.getvalue() + err.getvalue()


def prepared(what: str, config: Path, run: Path) -> str:
    """Do what `train` does before the first start; what it refuses. Anything but a Stop is a bug."""
    with bounded(what), contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            loaded = load_config(config)
            with held(run) as (folder, _lock):
                open_run(folder, loaded, False, Terminal(to_stderr=True, quiet=True))
        except Stop as stop:
            assert stop.code in (1, 2) and len(str(stop)) < 20_000, f"{what}: {str(stop)[:500]}"
            return str(stop)
        except PermissionError as error:  # which `main` answers; none that root meets
            return str(error)
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}\n{err.getvalue()[-500:]}") from error
    return ""


def tried(attempt: Callable[[int, Path], None], seeds: Iterable[int], tmp_path: Path) -> None:
    """Try each seed in a place of its own; all that fail are told. Nothing beside that place is written."""
    canary, bad, count = tmp_path / "canary", [], 0
    canary.write_text("kept\n")
    for seed in seeds:
        place = tmp_path / "place"
        place.mkdir()
        count += 1
        try:
            attempt(seed, place)
        except AssertionError as error:
            bad.append(str(error)[:3000])
        finally:
            shutil.rmtree(place)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["canary"] and canary.read_text() == "kept\n"
    assert count, "nothing was tried"
    assert not bad, f"{len(bad)} of {count}:\n" + "\n\n".join(bad[:8])


def fresh(count: int) -> list[int]:
    """Seeds that nobody has seen; HOLDFAST_HOSTILE=PART asks for a part of them."""
    draw = random.SystemRandom()
    return [draw.randrange(1000, 1 << 40) for _ in range(max(1, round(count * PART)))]
