"""A made run folder, and a page over it in this process."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.watch.board import Board
from holdfast.watch.site import WatchedRuns, open_site

HOSTILE = "<img src=x onerror=document.title=1>\x1b[2J"


def make_run(folder: Path, steps: int = 7, name: str = "made") -> Path:
    """A run folder as it lies there after some steps, one death, and hostile output."""
    run = folder / name
    files: dict[str, Any] = {
        "run.json": {"id": "ab" * 16},
        "plan.json": {"steps": 10},
        "config.yaml": {"model": "m", "data": {"files": ["f"]}},
        "timeline.jsonl": {"from_step": 1, "settings": {"steps": 10}, "reason": "plan"},
        "attempts/001/wreck.json": {
            "attempt": 1,
            "step": 3,
            "samples": [1],
            "words": "killed by SIGKILL",
            "died": 3.5,
            "committed_after": 2,
            "diagnosis": {"cause": "native_crash", "clues": []},
            "decision": {"remedy": "resume", "reason": "killed", "go_on": True},
        },
        "attempts/002/launch.json": {"started": 1.0},
        "events.jsonl": {"event": "restored", "attempt": 2, "step": 2, "state": "the newest snapshot", "time": 3.9},
    }
    for file, content in files.items():
        (run / file).parent.mkdir(parents=True, exist_ok=True)
        (run / file).write_text(json.dumps(content) + "\n")
    rows = [
        {
            "step": k,
            "time": float(k),
            "attempt": 2,
            "loss": 1 / k,
            "lr": 0.1,
            "grad_norm": 2.0,
            "tokens": 90,
            "seconds": 0.5,
            "peak_bytes": 9,
        }
        for k in range(1, steps + 1)
    ]
    (run / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "attempts/002/output.log").write_text(f"loading\n{HOSTILE}\nlast line\n")
    return run


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A page over one made run, in this process: `.port`, `.runs`; `.ask(path, token, method, more, **headers)`."""
    make_run(tmp_path / "runs")
    watched = WatchedRuns(Board([tmp_path / "runs"], must_be_runs=True), "secret", lan=False)
    with open_site(watched, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]

        def ask(path: str, token: str = "secret", method: str = "GET", more: str = "", **headers: str) -> tuple[int, str]:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as line:
                line.request(method, path + (f"?token={token}" if token else "") + more, headers=headers)
                with line.getresponse() as answer:
                    return answer.status, "" if answer.getheader("Content-Type") == "text/event-stream" else answer.read().decode()

        yield SimpleNamespace(port=port, ask=ask, runs=tmp_path / "runs", url=f"http://127.0.0.1:{port}/?token=secret", watched=watched)
        watched.ended.set()
        server.shutdown()
