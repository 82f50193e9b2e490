"""Have `holdfast stop` end a run, in a process of its own that outlives the page it was asked from."""

from __future__ import annotations

import subprocess
import threading

from holdfast.base.child import module_command
from holdfast.base.inert import inert
from holdfast.run.folder import RunFolder

_REFUSED_WITHIN_S = 3.0  # a stop that cannot be asked for says so within


def ask_to_stop(folder: RunFolder) -> str:
    """Ask the run to stop, in its own time; return why it cannot be asked, empty where it was."""
    command = [*module_command("holdfast", "stop"), "--", str(folder.path)]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    assert child.stderr is not None
    try:
        code = child.wait(_REFUSED_WITHIN_S)
    except subprocess.TimeoutExpired:  # it waits for the end of the run
        threading.Thread(target=child.communicate, daemon=True).start()
        return ""
    said = inert(child.stderr.read().decode(errors="replace").strip())
    child.stderr.close()
    return said or f"holdfast stop ended with {code}" if code else ""
