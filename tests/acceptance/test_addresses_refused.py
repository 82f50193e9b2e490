"""What is nearly an address becomes no folder of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.base.errors import Stop
from holdfast.supervision.remote.targets import target_of

ADDRESSES = [
    "",
    "  ",
    "S3://bucket/x",
    "s3:/bucket/x",
    "filecache::s3://b/x",
    "simplecache::gs://b/x",
    "memory://x",
    "GS:bucket",
    "~nouser/x",
]


@pytest.mark.parametrize("address", [*ADDRESSES, "host:/srv/runs", "C:\\runs"])
def test_an_address_that_is_nearly_right_is_refused(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Stop) as refused:
        target_of(address)
    assert refused.value.code == 2 and refused.value.hint
    assert not any(tmp_path.iterdir())


def test_a_folder_with_a_colon_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert target_of("./a:b").address == str(tmp_path / "a:b")
