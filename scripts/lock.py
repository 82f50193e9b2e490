"""Write requirements.lock: what the extras train and dev of this environment come to, pinned with the hashes of every file of each release.

    python scripts/lock.py [UV]        UV: the program (https://docs.astral.sh/uv), default `uv`

torch and what only it needs (its GPU libraries) are left out: which build is right depends on the machine. Install with
`pip install --require-hashes --no-deps -r requirements.lock` after torch.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
EXTRAS = ("train", "dev")
OWN = {"torch", "holdfast"}


def needed(name: str, extras: tuple[str, ...], found: dict[str, str]) -> None:
    """Add what an installed package needs here, and what that needs, to `found` {name: version}."""
    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        other = canonicalize_name(wanted.name)
        asked = wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        if other in OWN or not asked:
            continue
        try:
            version = distribution(other).version
        except PackageNotFoundError:
            continue
        known = other in found
        found[other] = version
        if not known or wanted.extras:
            needed(other, tuple(wanted.extras), found)


def main(uv: str) -> int:
    found: dict[str, str] = {}
    needed("holdfast", EXTRAS, found)
    with tempfile.NamedTemporaryFile("w", suffix=".in") as pins:
        pins.writelines(f"{name}=={version}\n" for name, version in sorted(found.items()))
        pins.flush()
        command = [uv, "pip", "compile", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
        return subprocess.run([*command, pins.name, "-o", str(ROOT / "requirements.lock")], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:2] or ["uv"]))
