"""Names of rows that are elsewhere: owner/name[@REVISION][?subset=S&split=S] on the hub, and addresses. Opens nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote

from holdfast.base.errors import USAGE, Stop
from holdfast.row_sources.remote_files import ADDRESS

ROWS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt")
PACKED = (".gz", ".zst", ".zstd", ".bz2")
_PART = r"[A-Za-z0-9][\w.-]*"
_HUB = re.compile(rf"(?P<name>{_PART}/{_PART})(?:@(?P<revision>refs/[^/]+/[^/]+|[^/]+))?(?:/(?P<path>.+))?")
_PREFIX = re.compile(r"hf://datasets/|https?://(?:www\.)?huggingface\.co/datasets/")
_IN_PAGE = re.compile(rf"(?P<name>{_PART}/{_PART})/(?:tree|blob|resolve|viewer)/(?P<revision>[^/]+)(?P<rest>/.+)?")
_ASKED = ("subset", "split")


@dataclass(frozen=True)
class HubRows:
    """Rows of a data set on the hub; path: one file of it, or several by a pattern. None: as the data set has it."""

    name: str
    revision: str | None = None
    subset: str | None = None
    split: str | None = None
    path: str | None = None

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        asked = "&".join(f"{key}={quote(value)}" for key in _ASKED if (value := getattr(self, key)))
        base = f"hf://datasets/{self.name}{at}/{self.path}" if self.path else f"{self.name}{at}"
        return f"{base}?{asked}" if asked else base


def is_elsewhere(name: str) -> bool:
    """True if a name that is no file here can be that of a data set on the hub, or is an address."""
    return bool(ADDRESS.match(name.lower())) or _is_plain(name)


def hub_rows(name: str) -> HubRows | None:
    """Parse a name as rows of the hub; None for other addresses. Raises Stop(2) for an invalid one."""
    if not _PREFIX.match(name) and not _is_plain(name):
        return None
    prefix, rest = bool(_PREFIX.match(name)), _PREFIX.sub("", name, count=1)
    text, _, query = rest.partition("?")
    if prefix and (page := _IN_PAGE.fullmatch(text)):
        text = f"{page['name']}@{unquote(page['revision'])}{page['rest'] or ''}"
    found = _HUB.fullmatch(text.rstrip("/"))
    asked = dict(parse_qsl(query, keep_blank_values=True))
    wrong = [key for key in asked if key not in _ASKED]
    if not found or wrong:
        why = f"{', '.join(wrong)} cannot be asked for" if wrong else "it names no data set"
        raise Stop(USAGE, f"{name}: {why}", "OWNER/NAME@REVISION?subset=SUBSET&split=SPLIT; all but OWNER/NAME may be left out")
    if "[" in (asked.get("split") or "") or "+" in (asked.get("split") or ""):
        text = f"{name}: a split is asked for by its name; parts and sums of splits are not made here"
        raise Stop(USAGE, text, "name each split as a file of its own; `holdfast data sample` draws rows")
    revision = unquote(found["revision"]) if found["revision"] else None
    return HubRows(found["name"], revision, asked.get("subset") or None, asked.get("split") or None, found["path"])


def with_asked(name: str, subset: str | None, split: str | None, revision: str | None) -> str:
    """Add data.subset, data.split and data.revision to a name, where it does not have them itself; an address stays as it is."""
    rows = hub_rows(name)
    if rows is None:
        return name
    return str(HubRows(rows.name, rows.revision or revision, rows.subset or subset, rows.split or split, rows.path))


def suffix_of(path: str) -> str:
    """Return the ending of a file's name without that of its compression, in small letters; "" where it has none."""
    name = path.rpartition("/")[2].lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    dot = name.rfind(".")
    return name[dot:] if dot > 0 else ""


def _is_plain(name: str) -> bool:
    """True if a name is owner/name, and not the misspelt path of a file of rows."""
    text = name.partition("?")[0]
    found = _HUB.fullmatch(text)
    return bool(found and not found["path"] and (found["revision"] or suffix_of(text) not in (*ROWS, ".yaml", ".yml", *PACKED)))
