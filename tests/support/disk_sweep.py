"""Each command with one call of its disk that fails: no end is a bug of ours, a dead end, a wrong hint or a falsehood; nothing is left.

python tests/support/disk_sweep.py LIBRARY FOLDER [--commands NAME,..] [--every N] [--most N] [--seed N]; LIBRARY: faulty_disk.c, compiled.
A line of JSON for each case that falls short; the last line counts. The first runs of a command, undisturbed, say what is always the same.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "scripts")]

DISK = struct.Struct("=5Q16s4096s4128s")
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EMFILE, errno.EFBIG)
_FREE = ("make room", "free space", "free up")
_WORDS = {  # of an error: what a hint names, one of these
    errno.EIO: ("dmesg", "input/output", "disk"),
    errno.ENOSPC: ("room", "full"),
    errno.EROFS: ("ead-only",),
    errno.EACCES: ("may not be", "permission denied", "owner"),
    errno.EMFILE: ("ulimit -n", "too many open files"),
    errno.EFBIG: ("ulimit -f", "too large", "large"),
}
_SCRIPT = "import time\nfor step in range(1, 6):\n    print(f'step {step}/5', flush=True)\n    time.sleep(0.05)\n"
_GOES_ON = f"import os\nbegun = os.path.exists('begun')\nopen('begun', 'w').close()\n{_SCRIPT}"
_GOES_ON += "    if step == 3 and not begun:\n        os._exit(9)\n"
COMMANDS: dict[str, list[str]] = {
    "train": ["train", "new.yaml", "--run", "new"],
    "resume": ["train", "half.yaml", "--run", "half", "--extend"],
    "init": ["init", "--model", "model", "--data", "rows.jsonl", "--out", "first.yaml"],
    "check": ["data", "check", "rows.jsonl", "--tokenizer", "model", "--html", "rows.html"],
    "clean": ["data", "clean", "rows.jsonl", "--out", "clean.jsonl", "--rejects", "rejects.jsonl", "--tokenizer", "model"],
    "show": ["data", "show", "rows.jsonl", "--row", "3", "--model", "model"],
    "split": ["data", "split", "rows.jsonl", "--into", "a.jsonl=0.9", "--into", "b.jsonl=0.1"],
    "sample": ["data", "sample", "rows.jsonl", "--rows", "20", "--out", "sample.jsonl"],
    "diff": ["data", "diff", "rows.jsonl", "other.jsonl"],
    "make": ["data", "make", "--rows", "40", "--out", "made.jsonl", "--held-out", "made-held.jsonl"],
    "adapter": ["export", "done", "--to", "adapter", "--out", "adapter"],
    "merged": ["export", "done", "--to", "merged", "--out", "merged"],
    "verify": ["verify", "done", "--rows", "other.jsonl", "--generate", "0", "--html", "verdict.html"],
    "report": ["report", "done", "--out", "report.html"],
    "bundle": ["bundle", "done", "--out", "bundle.zip"],
    "move": ["move", "done", "--to", "away"],
    "status": ["status", "done"],
    "models": ["models"],
    "promote": ["models", "promote", "done", "1", "--force", "a trial"],
    "learn": ["learn", "policy.yaml", "--rounds", "1"],
    "compare": ["compare", "done", "half", "--html", "compare.html"],
    "diagnose": ["diagnose", "done"],
    "plan": ["plan", "new.yaml", "--why", "why.html"],
    "doctor": ["doctor", "new.yaml", "--no-probe", "--save-env", "env.sh"],
    "trial": ["trial", "done", "--step", "5"],
    "run": ["run", "--run", "command", "--", "python", "train.py"],
    "rerun": ["run", "--run", "begun-run", "--", "python", "goes-on.py"],
}
TRAINS = ("train", "resume", "run", "rerun", "move", "learn")
_UNCOUNTED = "is unknown: its rows cannot be counted"
_TIMES = {"seconds", "speed", "wall_seconds", "goodput", "tokens_per_second", "disk_free_bytes"}  # keys of an answer
WITHOUT_RUNS = {"check", "clean", "show", "split", "sample", "diff", "make", "init", "plan", "doctor", "train", "run", "learn"}


class Disk:
    """The settings that all processes with the library read."""

    def __init__(self, file: Path) -> None:
        self.file = file
        if not file.exists():  # never cut while others have it mapped
            file.write_bytes(bytes(DISK.size))

    def set(self, under: str = "", at: int = 0, lasts: int = 0, fault: str = "", reads: bool = True) -> None:
        with self.file.open("r+b") as handle:
            handle.write(DISK.pack(0, at, lasts, reads, 0, fault.encode(), under.encode(), b""))

    def seen(self) -> tuple[int, str, int]:
        """How many calls there were; the first that was met; the error of the last."""
        fields = DISK.unpack(self.file.read_bytes())
        return fields[0], fields[7].rstrip(b"\0").decode(errors="replace"), fields[4]


class Place:
    """A folder in which each command begins with the same files."""

    def __init__(self, folder: Path, disk: Disk, runs: bool) -> None:
        """runs: whether there are runs besides rows and a model."""
        self.work, self.kept, self.disk = folder / "work", folder / "kept", disk
        self.env = {"HOLDFAST_CACHE": "cache", "HOLDFAST_MODELS": "models.jsonl", "TMPDIR": "tmp", "HOME": "home"}
        self.env = {name: str(self.work / value) for name, value in self.env.items()}
        if not self.kept.is_dir():
            self._fill()
            if runs:
                self._train()
            shutil.copytree(self.work, self.kept, symlinks=True)

    def _fill(self) -> None:
        from make_model import make_model

        from conftest import make_rows, write_config, write_rows

        shutil.rmtree(self.work, ignore_errors=True)
        for name in ("tmp", "home", "cache"):
            (self.work / name).mkdir(parents=True)
        rows = write_rows(self.work / "rows.jsonl", [*make_rows(120), {"instruction": "a", "output": ""}])
        write_rows(self.work / "other.jsonl", make_rows(150)[120:])
        make_model(self.work / "model", rows, "test")
        (self.work / "train.py").write_text(_SCRIPT)
        assets = SimpleNamespace(model=self.work / "model", rows=rows)
        (self.work / "inbox").mkdir()
        write_rows(self.work / "inbox/1.jsonl", make_rows(40))
        policy = {
            "name": "helper",
            "config": "new.yaml",
            "sources": [{"files": "inbox/*.jsonl"}],
            "round": {"rows": 40},
            "folder": "learned",
        }
        (self.work / "policy.yaml").write_text(json.dumps(policy | {"gate": {"rows": "other.jsonl", "margin": 0.5}}))
        train = {"steps": 6, "effective_batch": 4}
        for name in ("new", "done", "half"):
            write_config(
                assets, self.work / f"{name}.yaml", train=train, save={"every": 2}, run={"standby": False}, evaluate={"generate": 0}
            )

    def _train(self) -> None:
        """Make one finished run, one that was ended before its end, and a shipped model."""
        (self.work / "faults.yaml").write_text(json.dumps([{"when": {"step": 4}, "effect": "kill"}]))
        assert self.run(["train", "done.yaml", "--run", "done"]).returncode == 0
        ended = self.run(["train", "half.yaml", "--run", "half", "--faults", "faults.yaml", "train.until.hours=0.000001"])
        assert (self.work / "half/steps.jsonl").exists(), ended.stderr
        ended = self.run(["export", "done", "--to", "adapter", "--out", "shipped"])
        assert ended.returncode == 0, ended.stderr
        (self.work / "goes-on.py").write_text(_GOES_ON)
        ended = self.run(["run", "--retries", "0", *COMMANDS["rerun"][1:]])
        assert ended.returncode == 3, ended.stderr

    def renew(self) -> None:
        for _ in range(3):
            shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.kept, self.work, symlinks=True)

    def run(self, words: list[str], **disk: Any) -> subprocess.CompletedProcess[str]:
        from conftest import holdfast

        self.disk.set(str(self.work) if disk else "", **disk)
        return holdfast(*words, cwd=self.work, env=self.env)

    def files(self) -> dict[str, str]:
        """Path: hash of every file of ours."""
        found = {}
        for file in self.work.rglob("*"):
            name = str(file.relative_to(self.work))
            if file.is_file() and not name.startswith(("cache/", "home/.cache")):
                found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
            elif file.is_dir() and name.startswith("tmp/"):
                found[name] = "folder"
        return found

    def living(self) -> list[str]:
        """Command lines of processes that work in the folder."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and str((entry / "cwd").readlink()).startswith(str(self.work)):
                    command = (entry / "cmdline").read_bytes().split(b"\0")
                    found.append(f"{entry.name} {command[2:6]}")
        return found


def _values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _values(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _values(inner, f"{path}.{at}")
    else:
        yield path, value


def _answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    try:
        return dict(_values(json.loads(done.stdout)))
    except ValueError:
        return {"no JSON": done.stdout[:200]}


class Command:
    """A command's words, how many calls it makes, and what is the same in each undisturbed run of it."""

    def __init__(self, name: str, place: Place) -> None:
        self.name, self.place = name, place
        self.words = [*COMMANDS[name], "--json"] if COMMANDS[name][0] != "run" else ["run", "--json", *COMMANDS[name][1:]]
        seen = []
        for _ in range(3):
            place.renew()
            done = place.run(self.words, at=0)
            self.calls = place.disk.seen()[0]
            place.disk.set()
            assert done.returncode in (0, 1), (name, done.stderr)
            seen.append((_answer(done), place.files(), done.returncode))
        self.code = seen[0][2]
        steady = {key: value for key, value in seen[0][0].items() if _TIMES.isdisjoint(key.split("."))}
        self.answer = {key: value for key, value in steady.items() if all(one[0].get(key) == value for one in seen)}
        self.files = {key: value for key, value in seen[0][1].items() if all(one[1].get(key) == value for one in seen)}
        self.names = {key for one in seen for key in one[1]}
        self.before = {str(file.relative_to(place.kept)) for file in place.kept.rglob("*")}

    def case(self, at: int, number: int, lasts: int = 1) -> dict[str, Any] | None:
        """Run it with a call that fails; what falls short, None where nothing does."""
        place = self.place
        place.renew()
        done = place.run(self.words, at=at, lasts=lasts, fault=str(number))
        drawn, (_, met, number) = number, place.disk.seen()
        place.disk.set()
        if not met:
            return None
        short = list(self._shortfalls(done, {drawn, number, errno.EIO} if lasts > 1 else {number}))
        if living := place.living():
            short.append(f"living: {living}")
        new = set(place.files()) - self.names
        if lasts == 1 and (left := [name for name in new if name.startswith("tmp/") or name.endswith(".tmp")]):
            short.append(f"left: {left}")
        if done.returncode not in (0, self.code) and not met.startswith("unlink"):
            outputs = {
                name: sum_ for name, sum_ in place.files().items() if name in self.files and name not in self.before and "/" not in name
            }
            if half := [name for name, sum_ in outputs.items() if sum_ != self.files[name]]:
                short.append(f"half written: {half}")
        again = place.run(self.words)
        done_before = (
            ("is there", "nothing is overwritten", "give another --out", "steps already", "in place already")
            if done.returncode == self.code
            else ()
        )  # it was done
        if again.returncode != self.code and not any(words in again.stderr for words in done_before):
            short.append(f"again: {again.returncode} {again.stderr[-600:]}")
        elif again.returncode == self.code:
            short += [f"again: {one}" for one in self._differences(again, may_have_left=lasts > 1)]
        if not short:
            return None
        return {
            "command": self.name,
            "at": at,
            "of": self.calls,
            "error": errno.errorcode[number],
            "lasts": lasts,
            "met": met.replace(str(place.work) + "/", ""),
            "code": done.returncode,
            "short": short,
            "stderr": done.stderr[-1500:],
        }

    def _shortfalls(self, done: subprocess.CompletedProcess[str], numbers: set[int]) -> Iterator[str]:
        told = done.stderr
        if self.name == "doctor":  # what blocks is a finding, with its remedy
            told += "".join(f" -> {value}" for key, value in _answer(done).items() if key.startswith(".findings."))
        if done.returncode not in (0, 1, 2, 3):
            yield f"exit {done.returncode}"
        own = 'goes-on.py", line' in told or 'train.py", line' in told  # the command's own, which could not print
        if ("Traceback" in told and not own) or "this is a bug" in told or "please report" in told:
            yield "traceback"
        if done.returncode in (0, self.code) and "error" not in done.stdout[:200]:
            yield from self._differences(done)
            return
        if done.returncode in (0, self.code):
            return
        if done.returncode == 2:
            yield "a usage error"
        answer = _answer(done)
        if "no JSON" in answer or not told.strip():
            yield f"answer {answer}, stderr {told[:100]!r}"
        if errno.ENOSPC not in numbers and any(words in told for words in _FREE):
            yield "hint: room"
        if not any(words in told.lower() for number in numbers for words in _WORDS[number]):
            yield "hint: other"
        if "->" not in told:
            yield "hint: none"

    def _differences(self, done: subprocess.CompletedProcess[str], may_have_left: bool = False) -> Iterator[str]:
        answer, files = _answer(done), self.place.files()
        expected, kept = self.answer, self.files
        if self.name in TRAINS:  # an attempt more is no fault
            expected = {key: value for key, value in expected.items() if key in (".status", ".steps", ".artifact_sha256", ".loss.last")}
            kept = {name: value for name, value in kept.items() if "/adapter/" in name and not name.endswith("README.md")}
        other = {key: (value, answer.get(key)) for key, value in expected.items() if answer.get(key) != value}
        if self.name == "trial":  # another earlier checkpoint is as good; each trial has a folder of its own
            other = {key: values for key, values in other.items() if key not in (".folder", ".recomputed", ".state")}
            kept = {name: value for name, value in kept.items() if "/trials/" not in name}
            may_have_left = True
        if self.name == "verify" and ".overlap" in answer and answer[".overlap"] is None:  # "not looked at", as the verdict says
            other = {key: values for key, values in other.items() if not key.startswith(".overlap.")}
            kept = {name: value for name, value in kept.items() if name != "verdict.html"}
        if self.name == "bundle":  # it holds what the machine is like now; what is not in it, it says
            unread = any("cannot be read: " in str(value) for key, value in answer.items() if key.endswith(".note"))
            names = {value for key, value in answer.items() if key.endswith(".name")}
            other = {key: values for key, values in other.items() if not unread and key.endswith(".name") and values[0] not in names}
            kept = {name: value for name, value in kept.items() if name != "bundle.zip"}
        if any((key == ".plan_unknown" and value) or _UNCOUNTED in str(value) for key, value in answer.items()):  # says why
            other = {key: values for key, values in other.items() if not key.startswith((".plan", ".reasons", ".seconds"))}
            kept = {name: value for name, value in kept.items() if not name.endswith((".plan.json", "why.html"))}
        if any("cannot be read" in str(value) or "could not be read" in str(value) for value in answer.values()):  # says what it could not
            unknown = {key for key, (_, value) in other.items() if value in (None, 0.0, "unknown") or "be read" in str(value)}
            if all(any(f"{name} cannot be read" in str(value) for value in answer.values()) for name in ("summary.json", "events.jsonl")):
                unknown.add(".runs.0.state")  # both that tell the end: `status` has no word for an end that nobody knows
            other = {key: values for key, values in other.items() if key not in unknown}
            kept = {name: value for name, value in kept.items() if name != "verdict.html"}
        if other:
            yield f"false answer: {str(other)[:600]}"
        changed = [name for name, value in kept.items() if files.get(name) != value]
        if changed:
            yield f"false files: {changed}"
        if not may_have_left and self.name not in TRAINS and (left := set(files) - self.names):
            yield f"more files: {sorted(left)}"


def sweep(place: Place, names: list[str], every: int, seed: int, most: int) -> Iterator[dict[str, Any]]:
    """Yield what falls short, and as a last line the number of cases: every so many calls, or `most` calls of a command."""
    cases = 0
    for name in names:
        command = Command(name, place)
        draw = random.Random(f"{name} {seed}")
        print(f"{name}: {command.calls} calls", file=sys.stderr, flush=True)
        places = range(1 + draw.randrange(every), command.calls + 1, every)
        for at in sorted(draw.sample(places, min(most, len(places)))):
            cases += 1
            if found := command.case(at, draw.choice(ERRORS), draw.choice((1, 1, 1, 3))):
                yield found
    yield {"cases": cases}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--most", type=int, default=1 << 30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    file = arguments.folder / "disk"
    if os.environ.get("LD_PRELOAD") != str(arguments.library):
        Disk(file)
        os.environ |= {"LD_PRELOAD": str(arguments.library), "DISK_FILE": str(file)}
        os.execv(sys.executable, [sys.executable, *sys.argv])
    from support import forked

    forked.install()
    names = arguments.commands.split(",")
    place = Place(arguments.folder, Disk(file), runs=not WITHOUT_RUNS.issuperset(names))
    for found in sweep(place, names, arguments.every, arguments.seed, arguments.most):
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
