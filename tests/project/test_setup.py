"""`make setup` is quiet: what it does in a few lines, what to type next, and what pip says only where pip fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT

# what `python -m venv FOLDER` is asked of makes FOLDER/bin/python, which is asked to install
PYTHON = """#!/bin/sh
if [ "$1" = --version ]; then echo Python 3.11.7; exit; fi
mkdir -p "$3/bin"
cat >"$3/bin/python" <<'end'
#!/bin/sh
echo "WARNING: Retrying after connection broken"; echo "WARNING: of standard error" >&2
echo "$@" >>asked
[ ! -e fails ] || { echo "ERROR: no matching distribution"; exit 1; }
end
chmod +x "$3/bin/python"
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What `make setup` reads, in a folder with a space and an umlaut in its path, and a Python that installs nothing."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    folder = tmp_path / "mein Böller"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    return folder


def set_up(clone: Path) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "setup", "PYTHON=./python"]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)


def test_a_set_up_is_told_in_a_few_lines_and_ends_with_what_to_type_next(clone: Path) -> None:
    done = set_up(clone)
    said = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "") and len(said) < 10 and "WARNING" not in done.stdout
    assert "make demo" in said[-1] and "make test" in said[-1]
    asked = (clone / "asked").read_text().splitlines()
    (torch,) = re.findall(r"^torch==.*", (ROOT / "constraints.txt").read_text(), re.M)
    assert len(asked) == 2 and asked[0].endswith(torch)
    again = set_up(clone)
    assert again.stdout.splitlines() == said[-1:] and (clone / "asked").read_text().splitlines() == asked, "nothing is installed twice"
    os.utime(clone / ".venv/.ready", (0, 0))
    assert set_up(clone).stdout.splitlines() == said[-1:], "a new time stamp of the same words installs nothing"
    os.utime(clone / ".venv/.ready", (0, 0))
    with (clone / "constraints.txt").open("a") as pins:
        pins.write("# another pin\n")
    assert len(set_up(clone).stdout.splitlines()) == len(said)


def test_what_pip_says_is_shown_where_it_fails_and_the_next_try_begins_anew(clone: Path) -> None:
    (clone / "fails").touch()
    done = set_up(clone)
    assert done.returncode and "ERROR: no matching distribution" in done.stdout and not (clone / ".venv/.ready").exists()
    assert "WARNING: of standard error" in done.stdout and "Next" not in done.stdout
    (clone / "fails").unlink()
    assert set_up(clone).returncode == 0
