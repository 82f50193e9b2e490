"""Which files a run's rows were fetched into, in RUN/sources.json: a run that goes on asks no hub, and has the commit it began with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from holdfast.base.errors import USAGE, Stop
from holdfast.base.files import Json, read_json, write_json
from holdfast.config.config import Config
from holdfast.config.rows_elsewhere import with_rows_here
from holdfast.row_sources.fetch import fetch_rows
from holdfast.run.folder import RunFolder


def with_rows(run: RunFolder, config: Config, tell: Callable[[str], None]) -> Config:
    """Replace names on the hub and addresses by files in the config: fetched where the run is new, else those it began with.

    A name that the run did not begin with stays a name, which makes it another config. Raises Stop where rows cannot be fetched, and
    where two names have one file.
    """
    file = run.path / "sources.json"
    if run.config_file.exists():
        known = {(one["asked"], one["held_out"]): one["files"] for one in (read_json(file) or {}).get("sources", ())}
        return with_rows_here(config, lambda name, held_out: known.get((name, held_out)) or [name])
    sources: list[Json] = []

    def fetched(name: str, held_out: bool) -> list[str]:
        files = fetch_rows(name, "judging" if held_out else "learned", tell)
        sources.append({"asked": name, "held_out": held_out, "files": files})
        return files

    config = with_rows_here(config, fetched)
    if twice := next((one for one, times in Counter(config.data.files).items() if times > 1), None):
        names = [str(source["asked"]) for source in sources if twice in source["files"]]
        text = f"data.files: {' and '.join(names)} both have {Path(twice).name}, whose rows would be learned twice as often"
        raise Stop(USAGE, text, "name it once; to draw its rows more often: data.weights")
    if sources:
        write_json(file, {"sources": sources})
    return config


def data_sets(run: RunFolder) -> list[str]:
    """Return the data sets on the hub that a run learned from, as OWNER/NAME."""
    names = [one["asked"] for one in (read_json(run.path / "sources.json") or {}).get("sources", ()) if not one["held_out"]]
    return list(dict.fromkeys(name.removeprefix("hf://datasets/").partition("?")[0].partition("@")[0] for name in names if _on_hub(name)))


def _on_hub(name: str) -> bool:
    return "://" not in name or name.startswith("hf://")
