"""The page and what it asks for, over HTTP: all runs, one run, what changes, metrics, and the wish that a run stops."""

from __future__ import annotations

import ipaddress
import json
import platform
import secrets
import threading
import time
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.base.files import Json
from holdfast.base.versions import __version__
from holdfast.base.wait import Flag
from holdfast.machine.readings.now import Sampler
from holdfast.report.pages import page_template
from holdfast.report.table_page import in_words
from holdfast.serve.endpoint import LOOPBACK, GuardedHandler, RequestRefused, open_server
from holdfast.watch.board import Board
from holdfast.watch.metrics import metrics
from holdfast.watch.stopping import ask_to_stop

_EVERY_S = 1.0
_ALIVE_EVERY_S = 15.0  # a word where nothing changes, so that a client that went away is noticed
_COMPARING = threading.Lock()
_LONGEST = 300  # characters of a value that is compared
_A_SECOND = 4096  # bytes sent to one client; what is left over goes in the next second


@dataclass
class WatchedRuns:
    """lan: whether other machines are answered, by the address or the name of this one."""

    board: Board
    token: str
    lan: bool
    sampler: Sampler = field(default_factory=Sampler)
    ended: Flag = field(default_factory=Flag)


def open_site(watched: WatchedRuns, port: int) -> ThreadingHTTPServer:
    """Return a server that listens. Raises Stop(2) where the port is taken."""
    return open_server("0.0.0.0" if watched.lan else LOOPBACK, port, type("Bound", (WatchHandler,), {"watched": watched}))


class WatchHandler(GuardedHandler):
    """One request of the page, a script or a monitoring system."""

    watched: WatchedRuns
    entrance = "open the link that holdfast watch printed, or give ?token=TOKEN or Authorization: Bearer TOKEN"

    def secret(self) -> str:
        return self.watched.token

    def given_token(self) -> str:
        return super().given_token() or parse_qs(urlsplit(self.path).query).get("token", [""])[0]

    def is_ours(self, host: str) -> bool:
        """True if the host is an address or this machine's name: any other name may be another's page's (DNS rebinding)."""
        if super().is_ours(host) or not self.watched.lan:
            return super().is_ours(host)
        return _is_address(host.strip("[]")) or host.lower() in (platform.node().lower(), f"{platform.node().lower()}.local")

    def do_GET(self) -> None:
        routes = {"/": self._page, "/metrics": self._metrics, "/api/runs": self._runs, "/api/events": self._events}
        self.answer(routes | {urlsplit(self.path).path: self._run} if self._named() is not None else routes)

    def do_POST(self) -> None:
        self.answer({urlsplit(self.path).path: self._stop} if self._named("/stop") is not None else {})

    def _named(self, end: str = "") -> str | None:
        """Return the run that the path names; None where it names none."""
        path = urlsplit(self.path).path
        if not path.startswith("/api/runs/") or not path.endswith(end):
            return None
        name = unquote(path.removeprefix("/api/runs/").removesuffix(end))
        return name if name and "/" not in name else None

    def _page(self) -> None:
        page = page_template("watch.html").render(version=__version__, nonce=secrets.token_urlsafe(12))
        self.send_body(page.encode(), "text/html; charset=utf-8")

    def _metrics(self) -> None:
        text = metrics(self.watched.board.rows(), self.watched.sampler.latest)
        self.send_body(text.encode("utf-8", "replace"), "text/plain; version=0.0.4; charset=utf-8")

    def _runs(self) -> None:
        self._tell({"runs": list(self.watched.board.rows().values())})

    def _run(self) -> None:
        board, name = self.watched.board, self._named() or ""
        wanted = parse_qs(urlsplit(self.path).query)
        if other := wanted.get("with", [""])[0]:
            self._compare(name, other)
            return
        found = board.detail(name)
        if found is None:
            raise RequestRefused(404, "there is no such run")
        here = found["state"] == "running" and found["host"] == platform.node()
        if "brief" in wanted:  # the page draws by itself
            found = {key: value for key, value in found.items() if key not in ("chart", "loss_curve")} | {
                "held_out": found["held_out"][-1:]
            }
        self._tell(found | {"readings": (self.watched.sampler.latest if here else None) or found["readings"] or {}})

    def _compare(self, name: str, other: str) -> None:
        """Send a comparison, one at a time: it reads whole journals."""
        with _COMPARING:
            found = self.watched.board.compared(name, other)
        if found is None:
            raise RequestRefused(404, "there is no such run")
        told = [one | {"values": {run: in_words(value)[:_LONGEST] for run, value in one["values"].items()}} for one in found["differences"]]
        self._tell(found | {"differences": told})

    def _tell(self, value: Json) -> None:
        self.send_body(_bytes(value), "application/json")

    def _stop(self) -> None:
        """Have `holdfast stop` do it."""
        name = self._named("/stop") or ""
        folder, row = self.watched.board.folder(name), self.watched.board.rows().get(name)
        if folder is None or row is None:
            raise RequestRefused(404, "there is no such run")
        if row["state"] != "running":
            raise RequestRefused(409, f"the run is not running: {row['state']}")
        if refused := ask_to_stop(folder):
            raise RequestRefused(409, refused)
        self._tell({"asked": True})

    def _events(self) -> None:
        """Send each run that changed, as it changes, until the client has gone."""
        self.begin_stream()
        sent: dict[str, bytes] = {}
        last: dict[str, float] = {}
        spoke = time.monotonic()
        while not self.watched.ended.is_set():
            rows = {name: _bytes(_brief(row)) for name, row in self.watched.board.rows().items()}
            room = _A_SECOND
            for name in sorted(rows, key=lambda name: last.get(name, 0.0)):
                if room > 0 and sent.get(name) != rows[name]:
                    sent[name], last[name] = rows[name], time.monotonic()
                    room -= self._say("run", rows[name])
            for name in sent.keys() - rows.keys():
                del sent[name]
                room -= self._say("gone", _bytes({"name": name}))
            if room == _A_SECOND and time.monotonic() - spoke > _ALIVE_EVERY_S:
                room -= self._say("alive", b"{}")
            spoke = spoke if room == _A_SECOND else time.monotonic()
            self.watched.ended.wait(_EVERY_S)

    def _say(self, kind: str, data: bytes) -> int:
        told = b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
        self.wfile.write(told)
        return len(told)


def _brief(row: Json) -> Json:
    """Return the short entry that is sent again and again."""
    incident = row["last_incident"]
    brief = {name: incident[name] for name in ("step", "cause", "title")} if incident else None
    return row | {"readings": None, "last_incident": brief}


def _bytes(value: Json) -> bytes:
    """Encode JSON in ASCII on one line: names of files may be no UTF-8, and a journal of others may hold NaN, which is no JSON."""
    return json.dumps(_without_nan(value)).encode()


def _without_nan(value: object) -> object:
    if isinstance(value, dict):
        return {str(name): _without_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))) else value


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
