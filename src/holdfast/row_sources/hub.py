"""Fetch rows of a data set on the hub, by huggingface_hub: its cache (HF_HOME), its token (HF_TOKEN), its offline mode (HF_HUB_OFFLINE)."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.base.cache import cache_folder
from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import read_json, write_json
from holdfast.base.hub import refusal, unreachable
from holdfast.base.units import counted
from holdfast.base.versions import install
from holdfast.row_sources.names import HubRows
from holdfast.row_sources.splits import Use, files_of, of_use, shown_some

_HERE = "a file"
_CARD = "README.md"


def fetch(rows: HubRows, use: Use, tell: Callable[[str], None]) -> list[str]:
    """Fetch the files that are of use into the hub's cache. Raises Stop with what the hub lacks or refuses."""
    try:
        import huggingface_hub as hub
    except ImportError:
        raise Stop(BLOCKED, f"{rows.name} is not a file, and huggingface_hub is not installed", install("train")) from None
    asked = f"{rows.name}@{rows.revision}" if rows.revision else rows.name
    try:
        commit, names, away = _listing(hub, rows, tell)
        card = _get(hub, rows.name, commit, _CARD, away).read_text(encoding="utf-8", errors="replace") if _CARD in names else ""
        split, files, others, forms = files_of(rows, names, card, use == "judging")
        files = _of_pattern(rows, files, use, tell) if rows.path and not rows.split else files
        found = [_get(hub, rows.name, commit, file, away) for file in files]
    except Exception as error:  # each way in which it can fail is an error of its own, of two libraries
        if isinstance(error, Stop):
            raise
        raise refusal(error, asked, "data set", _HERE) from None
    size = sum(file.stat().st_size for file in found)
    what = [f"{key} {value}" for key, value in (("subset", rows.subset), ("split", split), ("commit", commit[:12])) if value]
    left = f"; not used: split {', '.join(others)}" if others and not rows.split else ""
    left += f"; not read, as they are of another form: {shown_some(forms)}" if forms else ""
    tell(f"{rows.name}, {', '.join(what)}: {counted(len(found), 'file')}, {size:,} bytes, in the hub's cache{left}")
    return [str(file) for file in found]


def _of_pattern(rows: HubRows, files: list[str], use: Use, tell: Callable[[str], None]) -> list[str]:
    """Return those of a pattern's files, or a folder's, that are of use; tell of the others under their whole names."""
    base = f"datasets/{rows.name}{f'@{rows.revision}' if rows.revision else ''}/"
    folder = posixpath.commonpath([posixpath.dirname(file) for file in files])
    return [file.removeprefix(base) for file in of_use(str(rows), [base + file for file in files], base + folder, use, tell)]


def _listing(hub: Any, rows: HubRows, tell: Callable[[str], None]) -> tuple[str, list[str], Exception | None]:
    """Return (commit, names of all files, None); where the hub is not reached, say so and return its last answer, and the error."""
    memory = _memory(rows)
    try:
        info = hub.HfApi().dataset_info(rows.name, revision=rows.revision)
    except Exception as error:  # see fetch
        known = read_json(memory) if memory else None
        if not unreachable(error):
            raise
        known = known or _in_cache(rows)
        if not known:
            raise
        if "Offline" not in type(error).__name__:
            tell(f"the hub is not reached ({type(error).__name__}): {rows.name} is taken from the cache, commit {known['commit'][:12]}")
        return known["commit"], known["files"], error
    commit, names = str(info.sha), sorted(entry.rfilename for entry in info.siblings or ())
    if memory:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json(memory, {"commit": commit, "files": names}, durable=False)
    return commit, names, None


def _get(hub: Any, name: str, commit: str, file: str, away: Exception | None) -> Path:
    """Fetch one file of a commit. away: why the hub is not asked; the cache has to have it then."""
    if away is None:
        return Path(hub.hf_hub_download(name, file, repo_type="dataset", revision=commit)).absolute()
    found = hub.try_to_load_from_cache(name, file, repo_type="dataset", revision=commit)
    if not isinstance(found, str):
        raise away
    return Path(found).absolute()


def _memory(rows: HubRows) -> Path | None:
    """Return the file for the names of a revision's files: the hub's own cache may hold some of them."""
    cache = cache_folder(os.environ)
    revision = (rows.revision or "main").replace("/", "--")
    return cache / "rows" / "hub" / rows.name.replace("/", "--") / f"{revision}.json" if cache else None


def _in_cache(rows: HubRows) -> dict[str, Any] | None:
    """Return the listing of files another program put into the hub's cache; None for none, or where parts of shards are missing."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder, revision = Path(HF_HUB_CACHE) / f"datasets--{rows.name.replace('/', '--')}", rows.revision or "main"
    ref = folder / "refs" / revision
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else revision
    place = folder / "snapshots" / commit
    names = sorted(str(file.relative_to(place)) for file in place.rglob("*") if file.is_file())
    lacking = [name for name in names if "-of-" in name and not _all_shards(name, names)]
    return {"commit": commit, "files": names} if names and not lacking else None


def _all_shards(name: str, names: list[str]) -> bool:
    stem, _, behind = name.rpartition("-of-")
    count = behind[:5]
    if not count.isdigit() or not stem[-5:].isdigit():
        return True
    return sum(one.startswith(stem[:-5]) and f"-of-{behind}" in one for one in names) == int(count)
