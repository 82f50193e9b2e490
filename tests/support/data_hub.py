"""A hub of data sets and models on loopback, which huggingface_hub takes for the real one through HF_ENDPOINT."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

TOKEN = "hf_good"


class DataHub:
    """`put` makes a commit; `gated`, `private`: names of data sets that need a token; `asked`: the paths of all requests."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, dict[str, bytes]]] = {}
        self.refs: dict[str, dict[str, str]] = {}
        self.gated: set[str] = set()
        self.private: set[str] = set()
        self.status = 200
        self.asked: list[str] = []
        self.url = ""

    def put(self, name: str, files: dict[str, str | bytes], revision: str = "main") -> str:
        inside = {path: content.encode() if isinstance(content, str) else content for path, content in files.items()}
        commit = hashlib.sha1(repr((name, revision, sorted(inside.items()))).encode()).hexdigest()
        self.commits.setdefault(name, {})[commit] = inside
        self.refs.setdefault(name, {})[revision] = commit
        return commit

    def commit_of(self, name: str, revision: str) -> str | None:
        return self.refs.get(name, {}).get(revision) or (revision if revision in self.commits.get(name, {}) else None)


class _Handler(BaseHTTPRequestHandler):
    hub: DataHub

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str, text: str) -> None:
        self._send(status, json.dumps({"error": text}).encode(), X_Error_Code=code, X_Error_Message=text, Content_Type="application/json")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(self.path.partition("?")[0])
        hub.asked.append(path)
        parts = path.strip("/").split("/")
        of_api = parts[0] == "api"
        parts = parts[of_api:]
        parts = parts[parts[0] in ("datasets", "models") :]
        if len(parts) < (2 if of_api else 4):
            return self._refuse(404, "", "no such address")
        owner, name, *rest = parts
        full = f"{owner}/{name}"
        given = self.headers.get("Authorization")
        if hub.status != 200:
            return self._refuse(hub.status, "", "the hub is not well")
        if given not in (None, f"Bearer {TOKEN}"):
            return self._refuse(401, "", "Invalid credentials in Authorization header")
        if full not in hub.commits or (full in hub.private and not given):
            return self._refuse(404 if given else 401, "RepoNotFound", "Repository not found")
        if full in hub.gated and not given and not of_api:
            return self._refuse(401, "GatedRepo", f"Access to dataset {full} is restricted.")
        if of_api and rest[:1] == ["tree"]:
            return self._tree(full, rest[1])
        if of_api:
            return self._about(full, "/".join(rest[1:]) or "main")
        return self._file(full, rest[1], "/".join(rest[2:]))

    def _about(self, name: str, revision: str) -> None:
        commit = self.hub.commit_of(name, revision)
        if commit is None:
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        siblings = [{"rfilename": path} for path in self.hub.commits[name][commit]]
        body = {"id": name, "sha": commit, "siblings": siblings, "private": False, "tags": [], "downloads": 0, "likes": 0}
        return self._send(200, json.dumps(body).encode(), Content_Type="application/json")

    def _tree(self, name: str, commit: str) -> None:
        about = [
            {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for path, content in self.hub.commits[name][commit].items()
        ]
        return self._send(200, json.dumps(about).encode(), Content_Type="application/json")

    def _file(self, name: str, revision: str, path: str) -> None:
        commit = self.hub.commit_of(name, revision)
        content = self.hub.commits[name].get(commit or "", {}).get(path)
        if content is None:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        return self._send(200, content, X_Repo_Commit=commit or "", ETag=f'"{hashlib.sha1(content).hexdigest()}"')


@contextmanager
def data_hub() -> Iterator[DataHub]:
    """A running hub; `url` is what HF_ENDPOINT has to be."""
    hub = DataHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
