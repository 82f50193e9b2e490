"""`holdfast watch [RUN...]`: your runs on one page, for a browser or a phone: losses, incidents, time left, a stop button."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import sys
import threading
from pathlib import Path

import orjson

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.inert import say
from holdfast.base.units import counted
from holdfast.base.versions import install
from holdfast.cli.outputs import at_terminal
from holdfast.config.load import load_config
from holdfast.report.notify.send import send, word_of
from holdfast.serve.endpoint import LOOPBACK, refuse_port, token_of
from holdfast.supervision.companions.notified import read_notify
from holdfast.supervision.runs import RUNS, chosen
from holdfast.watch.board import Board
from holdfast.watch.link import lan_address, qr_code
from holdfast.watch.site import WatchedRuns, open_site
from holdfast.watch.stopping import ask_to_stop

EXAMPLE = "holdfast watch"
_BEHIND = 5  # niceness: whoever floods the page takes little from what trains


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("places", type=Path, nargs="*", metavar="RUN", help="run folders, or folders of runs (default: runs)")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="where to listen (default: a port that is free)")
    parser.add_argument(
        "--lan", action="store_true", help="answer other machines of the network too; whoever has the link may look and stop"
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="where the token stands; made where it is not (default: another one each time)"
    )
    parser.add_argument("--terminal", action="store_true", help="show them in this terminal, full screen, in place of a page")
    parser.add_argument("--test-notify", action="store_true", help="send a word to whom run.notify of RUN (or a config) names, and end")
    parser.add_argument("--json", dest="ready_line", action="store_true", help="print one line of JSON with url and token when ready")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit code 0 once it is ended (Ctrl-C, SIGTERM), 2 where RUN is no run or the port is taken."""
    refuse_port(arguments.port)
    if arguments.test_notify:
        return _test_notify(arguments)
    places = [place.expanduser().resolve() for place in arguments.places or [RUNS]]
    if arguments.terminal:
        _refuse_no_screen()
    board = Board(places, must_be_runs=bool(arguments.places))
    if arguments.terminal:
        return _show_screen(board)
    os.nice(_BEHIND)
    watched = WatchedRuns(board, token_of(arguments.token_file), arguments.lan)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: watched.ended.set())
    with open_site(watched, arguments.port) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = lan_address() if arguments.lan else LOOPBACK
        _tell(arguments, watched, f"http://{address}:{server.server_address[1]}/?token={watched.token}", places)
        watched.sampler.start()
        watched.ended.wait()
        watched.sampler.end()
        server.shutdown()
    return DONE, {}


def _refuse_no_screen() -> None:
    """Raise Stop(2) where there is no package that draws a screen, or no terminal to draw it on."""
    if importlib.util.find_spec("textual") is None:
        raise Stop(USAGE, "--terminal needs the package textual, which is not installed", install("watch"))
    if not at_terminal():
        raise Stop(USAGE, "--terminal: this is no terminal", "one look at the runs: holdfast status")


def _show_screen(board: Board) -> tuple[int, Json]:
    screen = importlib.import_module("holdfast.watch.screen")
    screen.RunsScreen(board, ask_to_stop).run()
    return DONE, {}


def _test_notify(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Send a word to each receiver. Exit code 1 where one did not take it. Raises Stop(2) where nobody is named."""
    told: list[Json] = []
    for place in arguments.places:
        if place.is_file():
            notify, name = load_config(place, [], need_rows=False).run.notify, place.stem
        else:
            folder = chosen(place)
            folder.refuse_foreign()
            notify, name = read_notify(folder), folder.path.name
        if notify is None:
            raise Stop(USAGE, f"{place} has no run.notify", "add it to the config: docs/how-to/watch-runs.md")
        word = word_of("test", name, "a test of run.notify; nothing happened")
        told += [{"run": name} | one for one in send(notify, word)]
    if not told:
        raise Stop(USAGE, "--test-notify needs a run or a config", "holdfast watch CONFIG --test-notify")
    if arguments.ready_line:
        print(orjson.dumps({"receivers": told}).decode())
    else:
        say("\n".join(f"{one['run']}: {one['receiver']}: {'sent' if one['sent'] else 'NOT sent: ' + one['why']}" for one in told))
    return (DONE if all(one["sent"] for one in told) else BLOCKED), {}


def _tell(arguments: argparse.Namespace, watched: WatchedRuns, url: str, places: list[Path]) -> None:
    runs = len(watched.board.rows())
    if arguments.ready_line:
        print(orjson.dumps({"url": url, "token": watched.token, "runs": runs}).decode(), flush=True)
        return
    where = ", ".join(map(str, places))
    say(f"{counted(runs, 'run')} in {where}" if runs else f"no runs in {where} yet: they appear on the page as they begin")
    say(url)
    if not arguments.lan:
        say("for this machine alone; for your phone: holdfast watch --lan")
    elif sys.stdout and sys.stdout.isatty():
        code = qr_code(url)
        print(code if code else f"for a QR code of the link here: {install('watch')}")
    print(end="", flush=True)
