"""The runs as a full-screen view of a terminal, with what the page shows. Needs the package textual."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Footer, Sparkline, Static

from holdfast.base.files import Json
from holdfast.base.inert import brief, inert
from holdfast.base.units import span
from holdfast.machine.readings.words import told
from holdfast.report.words import between
from holdfast.run.folder import RunFolder
from holdfast.run.plan import Seconds
from holdfast.watch.board import Board

_EVERY_S = 1.0
_SILENT_S = 60.0  # from which on it is told when the last step was, as on the page
_SURE_S = 5.0  # within which the second press stops
_COLUMNS = ("run", "state", "step", "loss", "left", "incident")
_STATES = {"gave_up": "given up", "interrupted": "stopped", "dead": "dead: nobody works on it"}


class RunsScreen(App[None]):
    """A table of the runs, and below it the chosen one."""

    TITLE = "holdfast"
    CSS = """
    #runs { height: auto; max-height: 40%; }
    #about { padding: 0 1; }
    #loss { height: 4; margin: 0 1; }
    #said { padding: 0 1; color: $text-muted; }
    """
    BINDINGS: ClassVar = [("s", "stop", "Stop this run"), ("q", "quit", "Leave; runs go on")]

    def __init__(self, board: Board, stop: Callable[[RunFolder], str]) -> None:
        super().__init__()
        self._board, self._stop = board, stop
        self._rows: dict[str, Json] = {}
        self._chosen, self._sure_until, self._answer = "", 0.0, ""

    def compose(self) -> ComposeResult:
        yield Static("", id="said", markup=False)
        yield DataTable(id="runs", cursor_type="row", zebra_stripes=True)
        yield Sparkline([], id="loss")
        with VerticalScroll():
            yield Static("", id="about", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        for column in _COLUMNS:
            self.query_one(DataTable).add_column(column, key=column)
        self.set_interval(_EVERY_S, self._look)
        self._look()

    def _look(self) -> None:
        self.run_worker(self._read, thread=True, exclusive=True)

    def _read(self) -> None:
        rows = self._board.rows()
        chosen = self._chosen if self._chosen in rows else next(iter(rows), "")
        detail = self._board.detail(chosen) if chosen else None
        self.call_from_thread(self._show, rows, chosen, detail)

    def _show(self, rows: dict[str, Json], chosen: str, detail: Json | None) -> None:
        table = self.query_one(DataTable)
        for name in self._rows.keys() - rows.keys():
            table.remove_row(name)
        for name, row in rows.items():
            cells = _cells(row)
            if name not in self._rows:
                table.add_row(*map(Text, cells), key=name)  # a bare text is taken for markup
            elif cells != _cells(self._rows[name]):
                for column, cell in zip(_COLUMNS, cells, strict=True):
                    table.update_cell(name, column, Text(cell), update_width=True)
        self._rows, self._chosen = rows, self._chosen if self._chosen in rows else chosen
        living = sum(row["state"] == "running" for row in rows.values())
        self.query_one("#said", Static).update(inert(self._answer) or f"{len(rows)} runs, {living} running")
        self.query_one("#about", Static).update(inert("\n".join(_lines(detail))) if detail else "no runs yet: they appear as they begin")
        self.query_one(Sparkline).data = [point[1] for point in detail["loss_curve"] if point[1] == point[1]] if detail else []

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if event.row_key is not None and event.row_key.value and event.row_key.value != self._chosen:
            self._chosen, self._sure_until, self._answer = event.row_key.value, 0.0, ""
            self._look()

    def action_stop(self) -> None:
        """Ask once more, then have the run stopped."""
        folder, row = self._board.folder(self._chosen), self._rows.get(self._chosen)
        if folder is None or row is None or row["state"] != "running":
            self._answer = "the run is not running"
        elif time.monotonic() > self._sure_until:
            self._sure_until = time.monotonic() + _SURE_S
            self._answer = f"press s again: {self._chosen} finishes its step, saves and ends"
        else:
            self._sure_until, self._answer = 0.0, f"{self._chosen} is asked to stop"
            self.run_worker(lambda: self._ask(folder), thread=True)
        self.query_one("#said", Static).update(inert(self._answer))

    def _ask(self, folder: RunFolder) -> None:
        self._answer = self._stop(folder) or self._answer


def _state(row: Json) -> str:
    if row["state"] == "finished" and row["ills"]:
        return "finished, but not healthy"
    return str(row["doing"] or "running" if row["state"] == "running" else _STATES.get(row["state"], row["state"]))


def _cells(row: Json) -> tuple[str, ...]:
    loss = f"{row['loss']:.4f}" if isinstance(row["loss"], int | float) else "?"
    left = between(Seconds(**row["seconds_left"])) if row["seconds_left"] else ""
    incident = row["last_incident"]
    of = "?" if row["steps"] is None else f"{row['steps']:,}"
    return inert(row["name"]), _state(row), f"{row['step']:,} of {of}", loss, left, f"step {incident['step']}" if incident else ""


def _lines(run: Json) -> list[str]:
    """Describe the chosen run in lines of text."""
    rate = f", {run['tokens_per_second']:,.0f} tokens a second" if run["tokens_per_second"] else ""
    silent = time.time() - run["last_step_time"] if run["state"] == "running" and run["last_step_time"] else 0.0
    rate += f", last step {span(silent)} ago" if silent > _SILENT_S else ""
    lines = [f"{run['run']} on {run['host'] or 'an unknown host'}: {_state(run)}{rate}"]
    lines += [f"! {text}" for text in (*run["ills"], *run["problems"], *(sign["says"] for sign in run["signs"]))]
    lines += [run["reason"]] if run["reason"] else []
    lines += told(run["readings"]) if run["readings"] else []
    lines += [f"held-out loss {run['held_out'][-1][1]:.4f} at step {run['held_out'][-1][0]:,}"] if run["held_out"] else []
    lines += [
        f"rank {one['rank']}: process {one['pid'] or 'not here'}, {one['phase'] or '?'}, step {one['step'] or '?'}" for one in run["ranks"]
    ]
    lines += [f"trial {one['number']}: {one['tries']}: {one['came'] or 'under way'}" for one in run["trials"]] or [run["next"]] * bool(
        run["next"]
    )
    for one in reversed(run["incidents"]):
        lines += ["", f"step {one['step']}: {one['title']}", f"  {brief(one['evidence'])}"]
        lines += [f"  {one['book']['says']} holdfast explain {one['book']['card']}"] if one["book"] else []
        lines += [f"  done: {one['done']}"] if one["done"] else []
    notices = [f"{_when(one['time'])}  {one['says']}" for one in reversed(run["notices"])]
    lines += ["", "what happened", *notices] if notices else []
    return [*lines, "", "last lines of output", *(f"| {line}" for line in run["output"])]


def _when(at: float) -> str:
    """Return the local time, with its date where that is not today's."""
    then = time.localtime(at)
    return time.strftime("%T" if then[:3] == time.localtime()[:3] else "%F %T", then)
