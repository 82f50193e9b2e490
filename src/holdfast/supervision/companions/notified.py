"""Start and end the process that tells a person of a run's turns. What it tells is report/notify/follow.py's job."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from pydantic import ValidationError

from holdfast.base.child import module_command
from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.files import read_json, write_json
from holdfast.base.safe_open import read_small
from holdfast.base.signal_names import ended_by
from holdfast.base.units import span
from holdfast.config.notify import Notify
from holdfast.config.problems import problems_of
from holdfast.config.yaml_tree import in_one_line, value_of
from holdfast.processes.ending import end_gently
from holdfast.report.notify.send import AGAIN_S, PATIENCE_S, sendmail_program
from holdfast.run.folder import RunFolder
from holdfast.supervision.companions.watched import Helper, looking

_FILE_HINT = "keys of run.notify, one receiver at least: docs/how-to/watch-runs.md"
_PATIENCE_S = PATIENCE_S + AGAIN_S + 2  # after the end of the run, with receivers that are slow
_GIVEN_S = 2.0  # to end what is being sent


def refuse_missing_sendmail(notify: Notify | None) -> None:
    """Raise Stop(2) where letters are asked for on a machine that cannot send any: before the run, not at its end."""
    if notify and notify.sendmail and sendmail_program() is None:
        raise Stop(USAGE, "run.notify.sendmail: there is no sendmail on this machine", "install one, or use run.notify.command or url")


def notify_in(file: Path) -> Notify:
    """Read whom to notify from a YAML file: the keys of run.notify, or a config that has it. Raises Stop(2)."""
    try:
        tree = value_of(read_small(file).decode())
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise Stop(USAGE, f"{file} cannot be read: {in_one_line(error)[:300]}", _FILE_HINT) from None
    for name in ("run", "notify"):
        tree = tree[name] if isinstance(tree, dict) and name in tree else tree
    try:
        notify = Notify.model_validate(tree)
    except ValidationError as error:
        raise Stop(USAGE, f"{file} does not say whom to tell: {'; '.join(problems_of(error, Notify))[:300]}", _FILE_HINT) from None
    refuse_missing_sendmail(notify)
    return notify


def read_notify(run: RunFolder) -> Notify | None:
    """Return whom a run notifies; None where it notifies nobody. Raises Stop(1) where its file is damaged."""
    if not run.notify_file.exists():
        return None
    try:
        return Notify.model_validate_json(read_small(run.notify_file))
    except (ValueError, OSError) as error:
        raise Stop(BLOCKED, f"{run.notify_file} is damaged: {in_one_line(error)[:300]}", "remove it; the config has the same") from None


@contextlib.contextmanager
def notified(run: RunFolder, notify: Notify | None, hang_s: float, tell: Callable[[str], None]) -> Iterator[None]:
    """Have a person told while this lasts. Receivers that fail are in notify.log; a process that fails is told, and in the summary.

    One that hangs is ended, and told: what takes its place goes on where it was. hang_s: without any sign of life, at least.
    """
    if notify is None:
        run.notify_file.unlink(missing_ok=True)
        yield
        return
    descriptor = os.open(run.notify_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(notify.model_dump_json().encode())
    log, fails = run.path / "notify.log", False

    def hung(silent: float) -> None:
        run.event("notify_failed", code=None, log=str(log), silent_s=round(silent, 1))
        tell(f"the process of run.notify gave no sign of life for {span(silent)}: it was ended, another one takes its place")

    def failed(code: int | None) -> None:
        nonlocal fails
        if not fails:
            fails = True
            run.event("notify_failed", code=code, log=str(log))
            ended = "did not end in time" if code is None else ended_by(code)
            tell(f"the process of run.notify {ended}: it tells nobody any more; the run itself is whole; {log} says why")

    def look() -> None:
        code = helper.look()
        if code is not None and not run.summary_file.exists():  # it ends with the run, not before
            failed(code)

    helper = Helper(module_command("holdfast.report.notify.follow", run.path), log, max(hang_s, 2 * _PATIENCE_S), hung)
    try:
        with looking(look):
            yield
    finally:
        if not run.summary_file.exists():  # an error of ours: there is no end to tell of
            helper.child.terminate()
        code = helper.end(_PATIENCE_S)
        if code is None:
            end_gently(helper.child, _GIVEN_S)
        if code not in (0, -signal.SIGTERM):
            failed(code)
            if summary := read_json(run.summary_file):
                write_json(run.summary_file, summary | {"notify_failed": True})
