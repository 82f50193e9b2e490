"""A peer's own tests, as they are and with holdfast's callback in every Trainer they make: what passes as it is passes with it.

    git clone https://github.com/huggingface/accelerate
    python benchmarks/foreign/suites.py accelerate tests/test_state_checkpointing.py
    python benchmarks/foreign/suites.py trl tests/test_sft_trainer.py --python PEERS/hf/bin/python -- -k "not vlm"

The callback comes in as `holdfast run --callback` brings it in. What follows -- is pytest's. Tests that fail as they are (a hub that cannot
be reached) say nothing and are counted. Exit code 1 where one that passed as it is does not with the callback, or none passed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--python", default=sys.executable)
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    with tempfile.TemporaryDirectory() as place:
        words = [arguments.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments.files, *options]
        alone, held = (outcomes(words, arguments.checkout, Path(place) / name, name == "held") for name in ("alone", "held"))
    return told(alone, held)


def outcomes(words: list[str], checkout: Path, place: Path, callback: bool) -> dict[str, str]:
    """By test: passed, failed, error or skipped."""
    sys.path.insert(0, str(ROOT / "src"))
    from holdfast.run.command import Command
    from holdfast.supervision.command.attempts import environment_of

    attempt = place / "attempts/001"
    attempt.mkdir(parents=True)
    command = Command(tuple(words), str(checkout), callback=callback)
    environment = os.environ | {name: value for name, value in environment_of(command, None, place / "snapshot").items() if value}
    environment |= {"HOLDFAST_ATTEMPT": str(attempt)} if callback else {}
    subprocess.run([*words, f"--junit-xml={place}/found.xml"], cwd=checkout, env=environment, check=False)
    return {
        f"{case.get('classname')}::{case.get('name')}": outcome(case) for case in ElementTree.parse(place / "found.xml").iter("testcase")
    }


def outcome(case: ElementTree.Element) -> str:
    return next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")


def told(alone: dict[str, str], held: dict[str, str]) -> int:
    passed = [name for name, how in alone.items() if how == "passed"]
    worse = [f"{name}: {held.get(name, 'not run')}" for name in passed if held.get(name) != "passed"]
    print(f"{len(passed)} of {len(alone)} pass as they are; of these {len(passed) - len(worse)} with the callback")
    print("\n".join(worse))
    return int(bool(worse) or not passed)


if __name__ == "__main__":
    sys.exit(main())
