"""Start and end the process that passes steps on to trackers. What it does there is report/track.py's job."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
from collections.abc import Iterator

from holdfast.base.child import module_command
from holdfast.base.errors import USAGE, Stop
from holdfast.base.safe_open import open_log
from holdfast.config.config import Config
from holdfast.run.folder import RunFolder

_PATIENCE_S = 60


def refuse_missing_trackers(config: Config) -> None:
    """Raise Stop(2) when a tracker's package is not installed: before the run, not at its end."""
    missing = [name for name in config.run.track if importlib.util.find_spec(name) is None]
    if missing:
        raise Stop(USAGE, f"run.track: {', '.join(missing)} not installed", f"pip install {' '.join(missing)}")


@contextlib.contextmanager
def tracked(run: RunFolder, config: Config) -> Iterator[None]:
    """Have the run tracked while this lasts. A tracker that fails is an event, and its log says why."""
    if not config.run.track:
        yield
        return
    log = run.path / "track.log"
    with open_log(log) as output:
        command = module_command("holdfast.report.track", run.path)
        # in a session of its own, so that neither Ctrl-C nor a closed terminal reaches it
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    try:
        yield
    finally:
        try:
            code: int | None = child.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            code = None
        if code != 0:
            run.event("tracking_failed", code=code, log=str(log))
