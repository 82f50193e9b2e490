"""Train from Python: the same supervised run as `holdfast train`, in the same processes and the same folder."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.api.command import Given, as_settings, ask, interrupted, plainly, write_tree
from holdfast.api.notebook import StatusLine, in_notebook
from holdfast.api.run import Run
from holdfast.base.locks import taken
from holdfast.run.folder import RunFolder

_LOOK_S = 0.2


@plainly
def train(
    config: Given, *, folder: str | os.PathLike[str] | None = None, extend: bool = False, quiet: bool = False, **overrides: Any
) -> Run:
    """Train to an end, or go on with the unfinished run that is in the folder; return the finished run.

    config: a YAML file, or the same as a dict, whose relative paths are the current folder's.
    folder: of the run; by default runs/NAME, NAME being run.name, the config file's, or "run".
    extend: lengthen a finished run to the config's new length. overrides: change keys, as train={"lr": 1e-4} or **{"train.lr": 1e-4}.
    quiet: no progress.
    Ctrl-C, or a notebook's stop button, saves and ends. Raises Stop where the run cannot begin, was interrupted or was given up.
    """
    settings = as_settings(overrides)
    run = RunFolder(Path(folder).expanduser().resolve() if folder else _folder_of(config, settings))
    line = StatusLine(run) if in_notebook() and not quiet else None
    try:
        _wait_for_another(run, line)
        with _file_of(config, run) as file:
            words = ["train", str(file), *settings, "--run", str(run.path), *(["--extend"] if extend else [])]
            if line is not None:
                ask([*words, "--quiet"], line.look, line.told)
            else:
                ask([*words, *(["--quiet"] if quiet else [])])
    finally:
        if line is not None:
            line.end()
    return Run(run.existing())


@contextlib.contextmanager
def _file_of(config: Given, run: RunFolder) -> Iterator[Path]:
    """Yield the config's file; a dict's is written beside the run, where commands that resume it find it."""
    if not isinstance(config, Mapping):
        yield Path(config).expanduser()
        return
    file = run.path.with_name(f"{run.path.name}.holdfast.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_tree(config, file)
    try:
        yield file
    finally:
        if not run.begun():
            file.unlink(missing_ok=True)


def _folder_of(config: Given, settings: list[str]) -> Path:
    """Return where the run lies if it is not said, as `holdfast train` decides it."""
    from holdfast.config.load import read_yaml

    named = [setting.partition("=")[2] for setting in settings if setting.startswith("run.name=")]
    tree = config if isinstance(config, Mapping) else read_yaml(Path(config).expanduser())
    section = tree.get("run")
    name = named[-1] if named else section.get("name") if isinstance(section, Mapping) else None
    return (Path("runs") / str(name or ("run" if isinstance(config, Mapping) else Path(config).stem))).resolve()


def _wait_for_another(run: RunFolder, line: StatusLine | None) -> None:
    """See out the supervisor that has the run already, as one that a restarted kernel left behind. Ctrl-C stops it, resumably."""
    while run.supervisor_lock.exists() and taken(run.supervisor_lock):
        try:
            if line is not None:
                line.look()
            time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            ask(["stop", str(run.path)], told=lambda _: None)  # it would say which command resumes it
            raise interrupted() from None
