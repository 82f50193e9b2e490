"""Rows at addresses: each version fetched once, a cut transfer not kept, and what is wrong said. The service is a file system in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import holdfast, make_rows
from holdfast.base.errors import Stop
from holdfast.config.config import Config
from holdfast.data.files.paths import expand
from holdfast.row_sources.fetch import fetch_rows, to_stderr
from holdfast.row_sources.splits import Use
from holdfast.run.folder import RunFolder
from holdfast.run.rows_of_run import with_rows

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
memory = pytest.importorskip("fsspec.implementations.memory")


class Bucket(memory.MemoryFileSystem):  # type: ignore[misc, name-defined]
    """A bucket: files with an ETag. `fetched` counts transfers, `cut` shortens them, `denied` refuses them."""

    protocol = "bucket"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    fetched: list[str] = []  # noqa: RUF012
    cut = denied = False
    called: str | None = "ETag"  # what it calls what changes with a file's content; None: it does not tell

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("bucket://").strip("/")

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        if Bucket.denied:
            raise PermissionError(13, "Access Denied")
        found = super().info(path, **more)
        about = {key: found[key] for key in ("name", "size", "type")}
        return about | ({Bucket.called: str(hash(self.cat_file(path)))} if Bucket.called and found["type"] == "file" else {})

    def get_file(self, rpath: str, lpath: str, **more: Any) -> None:
        Bucket.fetched.append(rpath)
        data = self.cat_file(rpath)
        Path(lpath).write_bytes(data[: len(data) // 2] if Bucket.cut else data)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    for name, value in {"store": {}, "pseudo_dirs": [""], "fetched": [], "cut": False, "denied": False}.items():
        monkeypatch.setattr(Bucket, name, value)
    place = Bucket(skip_instance_cache=True)
    for number in range(2):
        place.pipe_file(f"/b/rows/part-{number}.jsonl", b'{"instruction": "a", "output": "%d"}\n' % number)
    place.pipe_file("/b/rows/.hidden.jsonl", b"{}")
    place.pipe_file("/b/rows/notes.md", b"notes")
    yield place


def test_a_version_is_fetched_once(bucket: Any) -> None:
    [file] = fetch_rows("bucket://b/rows/part-0.jsonl")
    assert fetch_rows("bucket://b/rows/part-0.jsonl") == [file] and len(bucket.fetched) == 1
    assert Path(file).name == "part-0.jsonl"
    bucket.pipe_file("/b/rows/part-0.jsonl", b'{"instruction": "a", "output": "9"}\n')
    [newer] = fetch_rows("bucket://b/rows/part-0.jsonl")
    assert newer != file and b'"9"' in Path(newer).read_bytes() and b'"0"' in Path(file).read_bytes()


@pytest.mark.parametrize("called", ["Last-Modified", "LastModified", "last_modified", "mtime", "Digest", "sha", "modificationTime", None])
def test_another_content_of_the_same_size_is_another_version(called: str | None, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bucket, "called", called)
    [file] = fetch_rows("bucket://b/rows/part-0.jsonl")
    assert fetch_rows("bucket://b/rows/part-0.jsonl") == [file] and len(bucket.fetched) == (1 if called else 2)
    bucket.pipe_file("/b/rows/part-0.jsonl", b'{"instruction": "a", "output": "9"}\n')
    [newer] = fetch_rows("bucket://b/rows/part-0.jsonl")
    assert newer != file and b'"9"' in Path(newer).read_bytes() and b'"0"' in Path(file).read_bytes()


@pytest.mark.parametrize("address", ["bucket://b/rows/*.jsonl", "bucket://b/rows", "bucket://b/rows/"])
def test_patterns_and_folders_are_their_row_files_in_order(address: str, bucket: Any) -> None:
    names = [Path(file).name for file in fetch_rows(address)]
    assert [name for name in names if not name.startswith(".")] == ["part-0.jsonl", "part-1.jsonl"] and "notes.md" not in names


@pytest.mark.parametrize("asked", ["bucket://b/set", "bucket://b/set/", "bucket://b/set/*/*.jsonl"])
@pytest.mark.parametrize("use", ["learned", "judging", "all"])
def test_a_folder_of_several_splits_is_used_as_one_here(
    asked: str, use: Use, bucket: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of test and validation were trained where the folder was an address."""
    for name in ("train/a.jsonl", "train/b.jsonl", "train/b.jsonl.gz", "test/c.jsonl", "validation/d.jsonl", "dataset_dict.json"):
        bucket.pipe_file(f"/b/set/{name}", b"{}")
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_bytes(b"{}")
    to_stderr.cache_clear()
    here = [Path(file).name for file in expand([asked.replace("bucket://b", str(tmp_path))], use)]
    said = capsys.readouterr().err.replace(f"{tmp_path}/", "bucket://b/").splitlines()
    assert [Path(file).name for file in expand([asked], use)] == here
    far = capsys.readouterr().err.replace("bucket:///b/", "bucket://b/").splitlines()
    assert far[: len(said)] == said and "in " in far[-1]
    assert ("c.jsonl" in here) is (use != "learned") and ("a.jsonl" in here) is (use != "judging")


def test_a_file_that_two_addresses_have_is_not_learned_twice(bucket: Any, tmp_path: Path) -> None:
    files = ["bucket://b/rows/part-0.jsonl", "bucket://b/rows/*.jsonl"]
    with pytest.raises(Stop, match=r"part-0.jsonl and bucket://b/rows/\*.jsonl both have part-0.jsonl") as stop:
        with_rows(RunFolder(tmp_path / "run"), Config(model="x", data={"files": files}), print)
    assert stop.value.code == 2 and "data.weights" in (stop.value.hint or "")
    (tmp_path / "run").mkdir()
    config = with_rows(RunFolder(tmp_path / "run"), Config(model="x", data={"files": files[1:]}), print)
    assert [Path(file).name for file in config.data.files][-2:] == ["part-0.jsonl", "part-1.jsonl"]


@pytest.mark.parametrize(
    ("address", "code", "message"),
    [
        ("bucket://b/none.jsonl", 2, "no such file there"),
        ("bucket://b/none*.jsonl", 2, "no such file there"),
        ("BUCKET://b/rows", 2, "protocols are written in small letters"),
        ("memory://rows.jsonl", 2, "is the memory of one process"),
        ("bucket://me:secret@b/rows.jsonl", 2, "holds a user or a password"),
        ("nonsense://b/rows.jsonl", 2, "is no address that fsspec knows"),
    ],
)
def test_what_is_wrong_is_said(address: str, code: int, message: str, bucket: Any) -> None:
    with pytest.raises(Stop, match=message) as stop:
        fetch_rows(address)
    assert stop.value.code == code and stop.value.hint


def test_what_is_cut_short_or_denied_is_not_kept(bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Bucket, "cut", True)
    with pytest.raises(Stop, match=r"cannot be read: .* ended after 18 of 36 bytes") as stop:
        fetch_rows("bucket://b/rows/part-0.jsonl")
    assert stop.value.code == 1 and not [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    monkeypatch.setattr(Bucket, "cut", False)
    monkeypatch.setattr(Bucket, "denied", True)
    with pytest.raises(Stop, match="may not be read: Access Denied") as stop:
        fetch_rows("bucket://b/rows/part-0.jsonl")
    assert stop.value.code == 1 and "credentials" in stop.value.hint


class _Web(BaseHTTPRequestHandler):
    seen: SimpleNamespace

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        body = self.seen.files.get(self.path)
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command == "GET":
            self.seen.given += 1
            self.wfile.write(body or b"")


def test_a_run_learns_rows_of_an_address(config_of: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="what fsspec reads https with is not installed")
    rows = "".join(json.dumps(row) + "\n" for row in make_rows(30)).encode()
    seen = SimpleNamespace(files={"/rows.jsonl": rows}, given=0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Web,), {"seen": seen}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = config_of(data={"files": f"http://127.0.0.1:{server.server_address[1]}/rows.jsonl"}, train={"steps": 2})
    try:
        done = holdfast("train", config, "--run", tmp_path / "run", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads((tmp_path / "run/sources.json").read_text())["sources"][0]["asked"].endswith("/rows.jsonl")
        other = holdfast("data", "check", f"http://127.0.0.1:{server.server_address[1]}/none.jsonl", cwd=tmp_path)
        assert other.returncode == 2 and "no such file there" in other.stderr, other.stderr
    finally:
        server.shutdown()
        server.server_close()
    again = holdfast("train", config, "train.steps=3", "--extend", "--run", tmp_path / "run", cwd=tmp_path)
    assert again.returncode == 0, "a run that goes on asks nobody"
