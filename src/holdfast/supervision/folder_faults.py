"""What may happen to a run folder while its run is supervised, as sentences: removed, a link in it, its disk full. One place for both."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import is_full
from holdfast.run.folder import RunFolder


@contextlib.contextmanager
def told_apart(run: RunFolder, kept: Path, removed: tuple[str, str], full: Callable[[], Stop]) -> Iterator[None]:
    """Raise Stop for what the run folder does not survive. kept: a file that is there as long as the folder is.

    removed: what is said of a folder that is gone, and the hint; full: the same of a disk that takes no more; it leaves nothing to itself.
    """
    try:
        yield
    except FileNotFoundError:
        if kept.exists():
            raise
        raise Stop(BLOCKED, f"{run.path} was removed while {removed[0]}", removed[1]) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Stop(BLOCKED, f"{error.filename} is a link; holdfast writes through none", "remove the link") from None
        if not is_full(error):
            raise
        raise full() from None
