"""The page that compares blind, in a real browser: asked, judged, kept, and read back by `data collect`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import __version__
from holdfast.base_model.folder import EMBEDDED
from holdfast.data.tokens.codec import load_codec
from holdfast.report.pages import page_template
from holdfast.serve.engines import AnswerRequest
from holdfast.serve.gateway import open_gateway
from holdfast.serve.preferences import Blind
from holdfast.serve.served import GatewayState, ServedModel
from support.browser import Tab

ANSWERS = {"base": "dir", "tuned": "ls -la <b>&"}


class Parrot:
    """An engine that says the same always."""

    name = "parrot"

    def stream(self, wanted: AnswerRequest) -> Iterator[tuple[str, int, str | None]]:
        yield ANSWERS[wanted.model], 1, None
        yield "", 0, "stop"

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The endpoint with its page: `.page`, `.kept`."""
    kept = tmp_path / "preferences.jsonl"
    page = page_template("ab.html").render(name="<i>first</i>", version=__version__)
    state = GatewayState("secret", Blind(kept), page)
    state.served = ServedModel(load_codec(EMBEDDED["tiny"]), "first", 512, Parrot())
    server = open_gateway(state, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield SimpleNamespace(page=f"http://127.0.0.1:{server.server_address[1]}/?token=secret", kept=kept)
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
            assert sorted(shown.values()) == sorted(ANSWERS.values()), "an answer is text, whatever it says"
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
