"""Send one word to a person: by a command, a web hook, or the system's sendmail. Waits for nobody longer than a few seconds."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection
from dataclasses import dataclass
from email.message import EmailMessage
from urllib.parse import urlsplit

from holdfast.base.child import with_env
from holdfast.base.files import Json
from holdfast.base.inert import inert
from holdfast.config.notify import Notify
from holdfast.privacy.scrub import Person, Scrubber, secrets_of

PATIENCE_S, AGAIN_S = 8.0, 3.0  # with one receiver; with one that did not answer before
NO_ANSWER = "no answer in time"
_PAUSE_S = 2.0  # before the second try with an endpoint that is down or busy
_LONGEST = 600  # characters of a word

_AT_WORK: set[subprocess.Popen[str]] = set()


@dataclass(frozen=True)
class Word:
    event: str
    run: str
    text: str

    @property
    def fields(self) -> dict[str, str]:
        return {"text": self.text, "event": self.event, "run": self.run}


def word_of(event: str, run: str, text: str) -> Word:
    """Make a notification without secrets and control characters, of bounded length."""
    scrubber = Scrubber(Person(secrets=secrets_of(os.environ)))
    return Word(event, inert(run), scrubber.secrets(inert(f"{run}: {text}"))[:_LONGEST])


def send(notify: Notify, word: Word, late: Collection[str] = ()) -> list[Json]:
    """Send to all receivers at once: {receiver, sent, why} of each. late: receivers that get `AGAIN_S`, as they did not answer before.

    One that sends a byte now and then would keep a socket's own limit waiting for ever: the limit is of the whole. Nothing is left running.
    """
    ways: dict[str, Callable[[Notify, Word], None]] = {"command": _command, "url": _post, "sendmail": _mail}
    chosen = {name: AGAIN_S if name in late else PATIENCE_S for name in ways if getattr(notify, name)}
    found: dict[str, Json] = {}
    threads = {
        name: threading.Thread(target=lambda name=name: found.setdefault(name, _tried(name, ways[name], notify, word)), daemon=True)
        for name in chosen
    }
    began = time.monotonic()
    try:
        for thread in threads.values():
            thread.start()
        for name, thread in threads.items():
            thread.join(max(0.0, began + chosen[name] - time.monotonic()))
        return [found.get(name) or {"receiver": name, "sent": False, "why": NO_ANSWER} for name in chosen]
    finally:
        for child in list(_AT_WORK):
            _end(child)


def sendmail_program() -> str | None:
    return shutil.which("sendmail", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/lib")


def _tried(name: str, way: Callable[[Notify, Word], None], notify: Notify, word: Word) -> Json:
    try:
        way(notify, word)
    except subprocess.CalledProcessError as error:
        why: str | None = f"exit code {error.returncode}"
    except urllib.error.HTTPError as error:
        why = f"HTTP {error.code}" + (": it is at another address, give that one" if error.code < 400 else "")
    except (OSError, ValueError, http.client.HTTPException) as error:  # an address is a secret: it is not repeated
        reason = getattr(error, "reason", None)
        why = getattr(reason, "strerror", None) or getattr(error, "strerror", None) or type(reason or error).__name__
    else:
        why = None
    return {"receiver": name, "sent": why is None, "why": why}


def _command(notify: Notify, word: Word) -> None:
    given = notify.command or []
    told = {f"HOLDFAST_{name.upper()}": value for name, value in word.fields.items()}
    _run(["sh", "-c", given] if isinstance(given, str) else given, json.dumps(word.fields) + "\n", with_env(os.environ, told))


def _mail(notify: Notify, word: Word) -> None:
    program = sendmail_program()
    if program is None:
        raise OSError(2, "there is no sendmail on this machine")
    letter = EmailMessage()
    letter["To"], letter["Subject"] = _address(notify.sendmail), word.text.splitlines()[0][:120]
    letter.set_content(word.text)
    _run([program, "-t", "-oi"], letter.as_string(), dict(os.environ))


def _run(command: list[str], text: str, environment: dict[str, str]) -> None:
    """Run a command in a session of its own, which is ended whole where it takes too long."""
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=environment, text=True, start_new_session=True, errors="replace"
    )
    _AT_WORK.add(child)
    child.communicate(text)
    _AT_WORK.discard(child)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command[0])


def _end(child: subprocess.Popen[str]) -> None:
    """End what has not ended by itself, and what it has started."""
    _AT_WORK.discard(child)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _post(notify: Notify, word: Word) -> None:
    url = _address(notify.url)
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError("no http or https address")
    body = notify.body if notify.body is not None else {"text": "{text}", "content": "{text}", "event": "{event}", "run": "{run}"}
    if isinstance(body, str):
        data, kind = _filled(body, word), "text/plain; charset=utf-8"
    else:
        data, kind = json.dumps({name: _filled(value, word) for name, value in body.items()}), "application/json"
    asked = urllib.request.Request(url, data.encode("utf-8", "replace"), {"Content-Type": kind, "User-Agent": "holdfast"})
    began = time.monotonic()
    try:
        _ask(asked)
    except urllib.error.URLError as error:
        refused = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
        if refused or time.monotonic() - began > _PAUSE_S:
            raise
        time.sleep(_PAUSE_S)
        _ask(asked)


class _StayingHere(urllib.request.HTTPRedirectHandler):
    """Follows to no other address: what is posted would be asked for there, without its word."""

    def redirect_request(self, *_: object) -> None:
        return None


def _ask(asked: urllib.request.Request) -> None:
    with urllib.request.build_opener(_StayingHere).open(asked, timeout=PATIENCE_S):
        pass


def _address(text: str | None) -> str:
    """Return an address with the variables it names put in. Raises OSError where one is not set."""
    for name in re.findall(r"\$\{?([A-Za-z_]\w*)", text or ""):
        if not os.environ.get(name):
            raise OSError(2, f"the variable {name} is not set")
    return os.path.expandvars(text or "")


def _filled(text: str, word: Word) -> str:
    for name, value in word.fields.items():
        text = text.replace(f"{{{name}}}", value)
    return text
