"""An error of the file system is a sentence with a way on, whatever verb meets it; never a bug of ours."""

from __future__ import annotations

import errno
import importlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.errors import Stop
from holdfast.base_model.folder import stored_tensors
from holdfast.run.folder import RunFolder

edge = importlib.import_module("holdfast.cli.main")  # the package gives the function this name

KINDS = ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "EACCES", "EPERM", "ENAMETOOLONG", "ENOENT", "EMFILE", "ESTALE", "ELOOP")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["/some/file", None])
def test_an_error_of_the_file_system_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str, name: Any
) -> None:
    number = getattr(errno, kind)

    def fail(_: Any) -> Any:
        raise OSError(number, os.strerror(number), name)

    parser = SimpleNamespace(parse_args=lambda argv: SimpleNamespace(json=False, verb_module=SimpleNamespace(run=fail)))
    monkeypatch.setattr(edge, "build_parser", lambda: parser)
    assert edge.main([]) == 1
    told = capsys.readouterr().err
    assert "->" in told and "Traceback" not in told and (name is None or number in (errno.EMFILE,) or name in told)


@pytest.mark.parametrize("kind", ["EIO", "EACCES", "EMFILE", "ESTALE", "ENOENT", "EISDIR"])
def test_a_file_that_cannot_be_read_now_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Nobody begins a run again, or downloads a model again, for a disk that fails or a limit; only where no such file is there."""
    number = getattr(errno, kind)

    def fail(path: Path, *more: Any) -> Any:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("holdfast.run.folder.read_small", fail)
    monkeypatch.setattr("holdfast.base_model.folder.open_regular", fail)
    for read, remedy in ((RunFolder(tmp_path).config, "begin again"), (lambda: stored_tensors(tmp_path / "w"), "download it again")):
        with pytest.raises((Stop, OSError)) as failed:
            read()
        assert (isinstance(failed.value, Stop) and remedy in str(failed.value)) == (kind in ("ENOENT", "EISDIR"))
