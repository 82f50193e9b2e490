"""The versions of transformers, PEFT and huggingface_hub that pyproject.toml claims: `make test-versions` runs tests under them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from library_versions import NAMES, floors, used_names

ASK = "python scripts/library_versions.py --names adds what the oldest versions have; guard the rest by `module_if_there` or by `try`"


def test_nothing_is_taken_of_the_libraries_that_the_oldest_claimed_versions_lack() -> None:
    first, *known = NAMES.read_text(encoding="utf-8").splitlines()
    versions = {
        name.replace("-", "_"): version for name, _, version in (one.partition("==") for one in first.rstrip(":").split() if "==" in one)
    }
    for library, floor in floors().items():
        assert versions[library].rstrip(":").startswith(floor), f"the names are those of {library} {versions[library]}: {ASK}"
    missing = {name: place for name, place in used_names().items() if name not in known}
    assert not missing, ASK


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from peft.utils.newer import convert", ["peft.utils.newer convert"]),
        ("def later():\n    import transformers\n    return transformers.Newer", ["transformers", "transformers Newer"]),
        ("from transformers import integrations\nintegrations.newer()", ["transformers integrations", "transformers.integrations newer"]),
        ("import peft.newer as own\nown.One", ["peft.newer", "peft.newer One"]),
        ("try:\n    from peft import Newer\nexcept ImportError:\n    Newer = None", []),
        ("try:\n    import peft\nexcept ValueError:\n    pass", ["peft"]),
        ("import json\njson.loads", []),
    ],
)
def test_what_a_module_takes_of_them_is_found_unless_it_does_without(text: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(text)
    assert list(used_names(tmp_path)) == found


def test_the_doctor_blocks_what_is_older_than_that() -> None:
    checks = ROOT / "src" / "holdfast" / "book" / "checks"
    for library in ("transformers", "peft"):
        card = (checks / f"{library}-version.yaml").read_text(encoding="utf-8")
        assert f'when: {{package: {{{library}: "<{floors()[library]}"}}}}, severity: block' in card
