"""Rows of a config that are elsewhere: their whole names, and the files they are fetched into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.base.errors import USAGE, Stop
from holdfast.config.config import Config
from holdfast.row_sources.fetch import fetch_rows
from holdfast.row_sources.names import is_elsewhere, with_asked
from holdfast.row_sources.remote_files import ADDRESS

FilesOf = Callable[[str, bool], list[str]]  # of a name, and whether its rows judge
_KEYS = ("subset", "split", "revision")


def elsewhere(name: str, folder: Path | None = None) -> bool:
    """True if a name of data.files that is no file beside the config is one on the hub, or an address.

    owner/name with a folder `owner` here is taken for a path: hf://datasets/owner/name names the data set all the same.
    """
    if not is_elsewhere(name):
        return False
    places = (Path(), folder or Path())
    return bool(ADDRESS.match(name.lower())) or not any((place / name.partition("/")[0]).is_dir() for place in places)


def with_rows_named(config: Config) -> Config:
    """Put data.subset, data.split and data.revision into the names of the config's data sets. Raises Stop(2) where there are none."""
    data = config.data
    asked = {key: getattr(data, key) for key in _KEYS}
    if not any(asked.values()) and not any(map(_is_name, [*data.files, *data.held_out_files])):
        return config
    names = {name: with_asked(name, **asked) for name in data.files if _is_name(name)}
    judging = {name: with_asked(name, **asked | {"split": None}) for name in data.held_out_files if _is_name(name)}
    if any(asked.values()) and not any(name.startswith("hf://") or "://" not in name for name in (*names, *judging)):
        given = ", ".join(f"data.{key}" for key, value in asked.items() if value)
        raise Stop(USAGE, f"{given}: none of data.files is a data set on the hub", "leave it out, or name one as OWNER/NAME")
    return _with_data(config, {name: [names[name]] for name in names}, {name: [judging[name]] for name in judging})


def _fetched(name: str, held_out: bool) -> list[str]:
    return fetch_rows(name, "judging" if held_out else "learned")


def with_rows_here(config: Config, files_of: FilesOf = _fetched) -> Config:
    """Return the config with the files of rows that are elsewhere, as `files_of` has them. Raises Stop for rows named twice."""
    data = config.data
    files = {name: files_of(name, False) for name in data.files if _is_name(name)}
    judging = {name: files_of(name, True) for name in data.held_out_files if _is_name(name)}
    if not files and not judging:
        return config
    config = _with_data(config, files, judging)
    if twice := {*config.data.files} & {*config.data.held_out_files}:
        text = f"data.held_out_files: {Path(min(twice)).name} is also in data.files; rows that are learned judge nothing"
        raise Stop(USAGE, text, "name another split, or leave data.held_out_files out: data.held_out keeps a share")
    return config


def _is_name(name: str) -> bool:
    return not Path(name).is_absolute() and is_elsewhere(name)


def _with_data(config: Config, files: dict[str, list[str]], judging: dict[str, list[str]]) -> Config:
    """Replace names of data.files and data.held_out_files; the keys that were asked beside them are part of the new names."""
    data = config.data
    changes = {
        "files": [one for name in data.files for one in files.get(name, [name])],
        "held_out_files": [one for name in data.held_out_files for one in judging.get(name, [name])],
        "weights": {one: weight for name, weight in data.weights.items() for one in files.get(name, [name])},
        **dict.fromkeys(_KEYS),
    }
    return config.model_copy(update={"data": data.model_copy(update=changes)})
