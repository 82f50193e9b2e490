"""A run folder that is made to try a config and is gone after the command (`holdfast check`, `tune`). What is in it is no place to name."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.base.tasks import kind_of
from holdfast.base_model.folder import EMBEDDED, is_folder
from holdfast.config.config import Config
from holdfast.report.words import shown
from holdfast.run.folder import RunFolder

_PREFIX = "holdfast-try-"


@contextmanager
def throwaway() -> Iterator[Path]:
    """Yield the path of a run folder that does not outlive the block."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as place:
        yield Path(place).resolve() / "run"


def where_rejects_are(run: RunFolder, config: Config) -> str:
    """Return the file of rejected rows, or, where it will be gone, the command that shows them."""
    return check_command(config) if run.path.parent.name.startswith(_PREFIX) else shown(run.rejects_file)


def check_command(config: Config, files: Sequence[str] = (), written: Path | None = None) -> str:
    """Return the `data check` that looks at a config's rows as that config reads them.

    files: those of its files that are meant; written: the config's own file, which rows that are no texts are looked at by.
    """
    if not kind_of(config).text_rows:
        return f"holdfast data check --config {shown(written) if written else 'CONFIG'}"
    data, objective = config.data, config.train.objective
    said = [] if objective == "sft" else ["--objective", objective]
    said += [] if data.format == "auto" else ["--format", data.format]
    said += [word for ours, theirs in data.fields.items() for word in ("--field", f"{ours}={theirs}")]
    said += [] if data.too_long == "cut" else ["--too-long", data.too_long]
    said += ["--row-weight", data.row_weight] if data.row_weight else []
    named = " ".join(shown(Path(file)) for file in files or data.files)
    own = "" if config.model in EMBEDDED or not is_folder(Path(config.model)) else f"--tokenizer {shown(Path(config.model))} "
    return f"holdfast data check {named} {own}{shlex.join([*said, '--max-tokens', str(config.train.max_tokens)])}"
