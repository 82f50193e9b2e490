"""A disk whose power is cut: what was never flushed is gone. An ext4 image mounted by loop, copied as the kernel has written it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
from pathlib import Path

from conftest import kill, wait_until

_SIZE = "160M"
_MOUNT = "loop,commit=3600"  # seconds: nothing but fsync and sync brings a file to the image


class Disk:
    """The mounted image: `folder` is what lies on it."""

    def __init__(self, place: Path) -> None:
        self.folder, self._place, self._cuts = place / "disk", place, 0
        self.as_cut, self.copied_again = place / "as_cut.image", 0  # the image as the last cut left it, of a test that fails
        self.folder.mkdir()
        image = self._image()
        subprocess.run(["truncate", "-s", _SIZE, image], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
        self.mounted = self._mount()

    def _image(self) -> Path:
        return self._place / f"image{self._cuts}"

    def _mount(self) -> bool:
        done = subprocess.run(["mount", "-o", _MOUNT, self._image(), self.folder], capture_output=True, text=True, check=False)
        self.refused = done.stderr
        return not done.returncode

    def flush(self) -> None:
        """Have all that was written so far reach the disk, as the kernel does now and then."""
        subprocess.run(["sync", "-f", self.folder], check=True)

    def cut(self) -> None:
        """Cut the power: every process that works on the disk stops at once, ends, and finds what had been flushed."""
        users = stop_all(self.folder)
        before = self._image()
        self._cuts += 1
        self._copy(before, self._image())
        kill_all(self.folder, users)
        self.unmount()
        before.unlink()
        _copied(self._image(), self.as_cut)
        assert self._mount(), f"{self.as_cut}: {self.refused}"

    def _copy(self, image: Path, to: Path) -> None:
        """Copy the image as it is at one moment. A flush that a stopped process is in, and the kernel, may write meanwhile: then again.

        A copy of two moments is no disk that a cut leaves: it may have a journal's commit without what was written before it.
        """
        while True:
            before = self._written()
            _copied(image, to)
            if before == self._written() and before[1] == 0:
                return
            self.copied_again += 1

    def _written(self) -> tuple[int, int]:
        """How many writes have reached the image, and how many are on their way."""
        device = self.folder.stat().st_dev
        counted = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
        return int(counted[4]), int(counted[8])

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", self.folder], check=True)


def _copied(image: Path, to: Path) -> None:
    subprocess.run(["cp", "--sparse=always", image, to], check=True)


def evidence(run: Path, most: int = 6000) -> str:
    """What lies in a run folder, with sizes and hashes, and the ends of its journals: for the words of a test that fails."""
    files = sorted(file for file in run.rglob("*") if file.is_file())
    told = [f"{file.relative_to(run)} {file.stat().st_size} {hashlib.sha256(file.read_bytes()).hexdigest()[:12]}" for file in files[:150]]
    for file in (*run.glob("*.jsonl"), *run.glob("attempts/*/*.log"), run / "supervisor.log", run / "plan.json"):
        if file.is_file():
            told += [f"--- {file.relative_to(run)}", file.read_bytes()[-most:].decode(errors="backslashreplace")]
    return "\n".join(told)


def users_of(folder: Path) -> set[int]:
    """Processes that work in a folder, or were started with a path of it; not this one."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            here = [word for word in words if word == str(folder) or word.startswith(f"{folder}/")]
            if (here or (entry / "cwd").readlink().is_relative_to(folder)) and "State:\tZ" not in (entry / "status").read_text():
                found.add(int(entry.name))
    return found


def stop_all(folder: Path) -> set[int]:
    """Stop all processes of a folder, also those that are started meanwhile; their pids."""
    stopped: set[int] = set()
    while new := users_of(folder) - stopped:
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= new
    return stopped


def kill_all(folder: Path, users: set[int] | None = None) -> None:
    """Kill all processes of a folder, or these, and see them gone; one that was being born has its name only now."""

    def gone() -> bool:
        left = users_of(folder)
        for pid in left:
            kill(pid)
        return not left

    for pid in users if users is not None else stop_all(folder):
        kill(pid)
    wait_until(gone)
