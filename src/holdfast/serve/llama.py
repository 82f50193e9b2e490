"""llama.cpp's server in a process of its own: it prints where it listens, and ends when its standard input does."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import orjson

from holdfast.base.files import Json, read_json


def main(path: Path) -> int:
    """Serve what the request names until standard input ends."""
    import xllamacpp

    request: Json = read_json(path) or {}
    key = secrets.token_urlsafe(24)
    params = xllamacpp.CommonParams()
    params.model.path = request["model"]
    params.n_ctx, params.n_parallel = request["context"] * request["slots"], request["slots"]
    params.verbosity, params.warmup = 0, False
    params.cache_ram_mib = 0  # what it keeps of prompts there it gives to either model, whichever it was computed with
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads, cpu.poll = request["threads"], 0
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [key]
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(file, 1.0) for file in request["lora"]]
    server = xllamacpp.Server(params)
    print(orjson.dumps({"url": server.listening_address, "key": key}).decode(), flush=True)
    sys.stdin.buffer.read()
    del server
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
