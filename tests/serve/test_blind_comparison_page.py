"""The page that compares blind, in a real browser: asked, judged, kept, and read back by `data collect`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from holdfast import __version__
from holdfast.base_model.folder import EMBEDDED
from holdfast.data.tokens.codec import load_codec
from holdfast.report.pages import page_template
from holdfast.serve.engines import AnswerRequest
from holdfast.serve.experts import RoutedExperts
from holdfast.serve.gateway import open_gateway
from holdfast.serve.preferences import Blind, tally
from holdfast.serve.served import GatewayState, ServedModel
from support.browser import Tab

ANSWERS = {"base": "dir", "tuned": "ls -la <b>&", "expert:ssh": "ssh -v"}


class Parrot:
    """An engine that says the same always: after its first word once `goes_on` is set, and until who asked has gone."""

    name = "parrot"

    def __init__(self) -> None:
        self.goes_on, self.left = threading.Event(), threading.Event()
        self.goes_on.set()

    def stream(self, wanted: AnswerRequest) -> Iterator[tuple[str, int, str | None]]:
        try:
            first, *rest = ANSWERS[wanted.model].partition(" ")
            yield first, 1, None
            while not self.goes_on.wait(0.01):
                yield "", 0, None
            yield "".join(rest), 1, None
            yield "", 0, "stop"
        finally:
            self.left.set()

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The endpoint with its page: `.page`, `.kept`."""
    kept = tmp_path / "preferences.jsonl"
    page = page_template("ab.html").render(models=("base", "tuned"), name="<i>first</i>", version=__version__)
    state = GatewayState("secret", Blind(kept), page)
    engine = Parrot()
    experts = RoutedExperts(("ssh",), (), SimpleNamespace(choose=lambda ids: 0))
    state.served = ServedModel(load_codec(EMBEDDED["tiny"]), "first", 512, engine, experts=experts)
    server = open_gateway(state, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    yield SimpleNamespace(url=url, page=f"{url}/?token=secret", kept=kept, engine=engine, state=state)
    server.shutdown()
    server.server_close()


def test_what_is_clicked_is_kept_and_becomes_rows(served: SimpleNamespace, tmp_path: Path, call: Any) -> None:
    tab = Tab(tmp_path)
    try:
        tab.call("Page.navigate", url=served.page)
        tab.wait("document.readyState === 'complete' && location.search === ''")
        assert "secret" not in tab.value("location.href"), "the token is no part of what is bookmarked"
        for number, choice in enumerate(("left", "right", "same")):
            tab.value(f"document.getElementById('prompt').value = 'How do I list files? {number}'")
            tab.value("document.querySelector('form button').click()")
            tab.wait("!document.getElementById('votes').hidden")
            shown = {side: tab.value(f"document.getElementById('{side}').textContent") for side in ("left", "right")}
            assert sorted(shown.values()) == ["dir", "ls -la <b>&"], "an answer is text, whatever it says"
            tab.picture(tmp_path / "light.png", "light")
            tab.value(f"document.querySelector('[data-choice={choice}]').click()")
            tab.wait("document.getElementById('said').textContent.startsWith('kept')")
            row = json.loads(served.kept.read_text().splitlines()[-1])
            assert row["voted"] == "same" if choice == "same" else row["chosen"] == shown[choice]
            if number == 0:
                tab.value("location.reload()")  # the tab knows its token
                tab.wait("document.readyState === 'complete' && document.getElementById('said').textContent === ''")
        tab.picture(tmp_path / "dark.png", "dark")
        said = tab.value("document.getElementById('said').textContent")
        assert "number 3" in said and "tuned" not in said and "base" not in said, "a count by model tells which side was which"
        assert tab.errors == []
    finally:
        tab.close()
    assert (tmp_path / "light.png").read_bytes() != (tmp_path / "dark.png").read_bytes()
    answer = call("collect", served.kept, "--out", tmp_path / "rows.jsonl")
    assert answer["rows"] == 2 and answer["by_reason"] == {"no_response": 1}


def test_an_answer_is_shown_as_it_comes_and_can_be_cancelled(served: SimpleNamespace, tmp_path: Path) -> None:
    served.engine.goes_on.clear()
    tab = Tab(tmp_path)
    try:
        tab.call("Page.navigate", url=served.page)
        tab.wait("document.readyState === 'complete' && location.search === ''")
        tab.value("document.getElementById('prompt').value = 'How do I list files?'")
        tab.value("document.querySelector('form button').click()")
        tab.wait("['dir', 'ls'].includes(document.getElementById('left').textContent)")
        assert tab.value("document.getElementById('votes').hidden"), "half an answer is judged by nobody"
        tab.value("document.getElementById('cancel').click()")
        tab.wait("document.getElementById('said').textContent.startsWith('cancelled')")
        assert served.engine.left.wait(60), "who has gone is generated for no longer"
        assert tab.value("document.getElementById('votes').hidden && document.getElementById('cancel').hidden")
        served.engine.goes_on.set()
        tab.value("document.querySelector('form button').click()")
        tab.wait("!document.getElementById('votes').hidden")
        assert tab.value("document.getElementById('left').textContent") in ("dir", "ls -la <b>&")
        assert tab.errors == []
    finally:
        tab.close()
    assert not served.kept.exists()


def post(served: SimpleNamespace, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a request as a program does."""
    found = httpx.post(served.url + path, json=body, headers={"Authorization": "Bearer secret"}, timeout=60)
    answer: dict[str, Any] = found.json()
    return answer | {"status": found.status_code}


def test_experts_are_compared_with_the_adapter_for_all_in_votes_of_their_own(served: SimpleNamespace) -> None:
    shown = post(served, "/ab/ask", {"prompt": "How do I list files?"})
    side = "left" if shown["left"] == "dir" else "right"
    assert post(served, "/ab/vote", {"id": shown["id"], "choice": side})["kept"] == 1
    served.state.blind = blind = Blind(served.kept, ("tuned", "routed"))
    for _ in range(2):
        shown = post(served, "/ab/ask", {"prompt": "How do I list files?"})
        assert sorted((shown["left"], shown["right"])) == ["ls -la <b>&", "ssh -v"], "routed: the expert that the router chose"
        post(served, "/ab/vote", {"id": shown["id"], "choice": "left" if shown["left"] == "ssh -v" else "right"})
    assert {name: blind.tally()[name] for name in ("tuned", "routed", "same")} == {"tuned": 0, "routed": 2, "same": 0}
    assert {name: tally(served.kept)[name] for name in ("base", "tuned", "same")} == {"base": 1, "tuned": 0, "same": 0}
    rows = [json.loads(line) for line in served.kept.read_text().splitlines()]
    assert [(row["chosen"], row["rejected"]) for row in rows] == [("dir", "ls -la <b>&")] + 2 * [("ssh -v", "ls -la <b>&")]
    served.state.served.experts = None
    assert post(served, "/ab/ask", {"prompt": "x"})["status"] == 404, "a version that has no experts"
