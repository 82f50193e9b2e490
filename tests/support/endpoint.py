"""A real HTTP server that answers like an OpenAI-compatible endpoint, and misbehaves as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Misdeed = Callable[[int], str]  # number of the request -> what to do wrong, "" for nothing


class Endpoint:
    """`url`, and what was asked for. Rows are numbered, so they differ; `misdeed` may spoil some."""

    def __init__(self, misdeed: Misdeed, usage: bool = True) -> None:
        self.misdeed, self.usage = misdeed, usage
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.served = 0
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def rows(self, count: int) -> list[dict[str, str]]:
        with self.lock:
            first, self.served = self.served, self.served + count
        words = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty", "knoll")
        return [
            {
                "instruction": f"{words[n % 11]} {words[n // 11 % 11]} question {n * 7919 % 100003}: where is {words[n * 3 % 11]}{n}?",
                "input": "",
                "output": f"{n * 104729 % 1000003} steps behind {words[n * 5 % 11]} {words[n * 7 % 11]}, entry {n}",
            }
            for n in range(first, first + count)
        ]

    def content(self, body: dict[str, Any], wrong: str) -> str:
        wanted = int(body["messages"][-1]["content"].split()[1])
        rows = self.rows(wanted)
        if wrong == "duplicates":
            rows = [rows[0]] * wanted
        if wrong == "schema":
            rows[0] = {"question": "none of ours"}  # type: ignore[assignment]
            rows[-1]["output"] = "  "
        text = json.dumps({"rows": rows})
        if wrong == "cut":
            return text[: len(text) * 2 // 3]
        return f"Here you are:\n```json\n{text}\n```" if wrong == "chatty" else text

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with endpoint.lock:
                    endpoint.requests.append(body)
                    endpoint.keys.append(self.headers.get("authorization"))
                    wrong = endpoint.misdeed(len(endpoint.requests))
                if wrong == "slow":
                    time.sleep(1.0)
                if wrong.isdigit():
                    return self.send(int(wrong), b'{"error": "overloaded"}')
                if wrong == "no schema" and "response_format" in body:
                    return self.send(400, b'{"error": "response_format is not supported"}')
                choice = {"message": {"role": "assistant", "content": endpoint.content(body, wrong)}, "finish_reason": "stop"}
                answer: dict[str, Any] = {"choices": [choice]}
                if endpoint.usage:
                    answer["usage"] = {"prompt_tokens": 1000, "completion_tokens": 500}
                data = json.dumps(answer).encode()
                if wrong == "torn":  # the connection breaks in the middle of the body
                    self.send_response(200)
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data[: len(data) // 2])
                    self.close_connection = True
                    return None
                return self.send(200, data)

            def send(self, status: int, data: bytes) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@contextmanager
def serving(misdeed: Misdeed = lambda _: "", usage: bool = True) -> Iterator[Endpoint]:
    endpoint = Endpoint(misdeed, usage)
    thread = threading.Thread(target=endpoint.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.server.shutdown()
        endpoint.server.server_close()
        thread.join()
