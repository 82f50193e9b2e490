"""An error of the file system is a sentence with a way on, whatever verb meets it; never a bug of ours."""

from __future__ import annotations

import errno
import importlib
import os
from types import SimpleNamespace
from typing import Any

import pytest

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
