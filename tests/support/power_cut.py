"""A disk whose power is cut: what was never flushed is gone. An ext4 image mounted by loop, copied as the kernel has written it."""

from __future__ import annotations

import contextlib
import os
import shutil
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
        self.folder.mkdir()
        image = self._image()
        subprocess.run(["truncate", "-s", _SIZE, image], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
        self.mounted = self._mount()

    def _image(self) -> Path:
        return self._place / f"image{self._cuts}"

    def _mount(self) -> bool:
        return not subprocess.run(["mount", "-o", _MOUNT, self._image(), self.folder], capture_output=True, check=False).returncode

    def flush(self) -> None:
        """Have all that was written so far reach the disk, as the kernel does now and then."""
        subprocess.run(["sync", "-f", self.folder], check=True)

    def cut(self) -> None:
        """Cut the power: every process that works on the disk stops at once, ends, and finds what had been flushed."""
        users = stop_all(self.folder)
        before = self._image()
        self._cuts += 1
        shutil.copyfile(before, self._image())
        kill_all(self.folder, users)
        self.unmount()
        before.unlink()
        assert self._mount()

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", self.folder], check=True)


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
    """Kill all processes of a folder, or these, and see them gone."""
    for pid in users if users is not None else stop_all(folder):
        kill(pid)
    wait_until(lambda: not users_of(folder))
