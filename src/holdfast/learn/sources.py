"""Rows from a policy's sources, with their places: what no round has taken yet. Acknowledges nothing before it is told to."""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json
from holdfast.data.collect.files import batches_of, kind_of
from holdfast.data.collect.gather import cleared
from holdfast.data.collect.outfile import row_key
from holdfast.data.collect.pairs import RATINGS
from holdfast.data.collect.record import Record, Unusable
from holdfast.data.collect.redisstream import ONE_FIELD, StreamReader, StreamSource
from holdfast.learn.policy import Origin, Policy
from holdfast.learn.rounds import WITHDRAWN

_BAD = {"bad", "down", "dislike", "disliked", "thumbs_down", "negative", "no", "false", "wrong", "👎"}
_GOOD = {"good", "up", "like", "liked", "thumbs_up", "positive", "yes", "true", "right", "correct", "👍"}
_MOST_TOLD, _LONGEST = 8, 40  # ratings, and characters of one
_THUMBS = (-1.0, 0.0, 1.0)
UNKNOWN_RATING, RATED_BAD = "unknown_rating", "rated_bad"
LOST = "gone"  # of an entry of a stream
_CORRECTIONS = ("correction", "corrected", "preferred")
_SIDE = re.compile(  # of two answers, and no answer itself
    r"(?:(?:answer|response|completion|output|model|option|side)[ _-]?)?(?:[ab]|left|right|first|second)|both|neither|tie|same|none", re.I
)
Taken = frozenset[tuple[str, str]]  # (place, hash of what stood there) of all that rounds have taken


@dataclass(frozen=True)
class ArrivedRecord:
    """A record that has come. row: cleared of secrets, or None and why; entry: its name in the stream that is source number `source`;
    rated: the number that people gave it; disliked: the `row_key` of an answer that they found bad or corrected."""

    place: str
    sha256: str
    source: int
    entry: str | None
    row: Json | None
    reason: str
    detail: str
    domain: str
    person: str
    rated: float | None = None
    disliked: int | None = None

    def as_json(self) -> Json:
        return dict(self.__dict__)

    def nobodys(self) -> ArrivedRecord:
        """Return the arrival without its content and its person."""
        return replace(self, row=None, reason=WITHDRAWN, detail="", person="", disliked=None)


def arrived(policy: Policy, taken: Taken, missing: list[str] | None = None) -> Iterator[ArrivedRecord]:
    """Yield what has come and no round has taken, source by source, in its order. Raises Stop where a source cannot be read.

    missing: gets the names of files, folders and streams of which nothing is there yet.

    An entry of a stream that a round has taken comes again where a server forgot that it was acknowledged: it is told again.
    """
    for number, origin in enumerate(policy.sources):
        seen: set[str] = set()
        again: list[tuple[int, str]] = []
        for record in _records(origin, policy, [] if missing is None else missing):
            digest = hashlib.sha256(record.raw.encode("utf-8", "surrogatepass")).hexdigest()[:32]
            if (record.place, digest) in taken or (origin.redis and record.place in seen):
                again += [(number, _entry(record))] if origin.redis and record.place not in seen else []
                continue
            seen.add(record.place)
            yield _judged(record, digest, number, origin, policy)
        acknowledge(policy, again)


def acknowledge(policy: Policy, entries: list[tuple[int, str]]) -> None:
    """Tell the streams that entries are done with; to tell it twice changes nothing. Raises Stop(3) where a server stays away."""
    for number, some in itertools.groupby(sorted(entries), key=lambda one: one[0]):
        if number >= len(policy.sources) or not policy.sources[number].redis:
            raise Stop(BLOCKED, f"a round has taken rows of source {number + 1}, which is no stream of the policy now", "put it back there")
        StreamReader(_stream(policy.sources[number], policy)).acknowledge([name for _, name in some])


def _records(origin: Origin, policy: Policy, missing: list[str]) -> Iterator[Record | Unusable]:
    if origin.redis:
        if not (reader := StreamReader(_stream(origin, policy))).exists():
            missing.append(f"stream {origin.stream}")
            return
        for batch in reader.there():
            yield from batch.records
        return
    if not (files := files_of(origin)):
        missing += origin.files or [origin.folder or origin.votes or ""]
    for file in files:
        unfinished = _unfinished(file)
        for batch in batches_of(file, kind_of(file), shell_allowed=False):
            for record in batch.records:
                if not (unfinished and isinstance(record, Unusable) and record.raw.strip() == unfinished):
                    yield record


def _stream(origin: Origin, policy: Policy) -> StreamSource:
    assert origin.redis and origin.stream
    return StreamSource(origin.redis, origin.stream, origin.group, f"learn:{policy.name}", cluster=origin.cluster)


def files_of(origin: Origin) -> list[str]:
    """List files that are there and hold something; those whose name begins with a dot are somebody's unfinished ones."""
    found: list[Path] = []
    if origin.votes:
        place = Path(origin.votes)
        found = [place] if place.is_file() else sorted(place.rglob("preferences.jsonl"))
    elif origin.folder:
        found = sorted(Path(origin.folder).rglob("*"))
    for pattern in origin.files or ():
        found += sorted(map(Path, glob.glob(pattern, recursive=True)))  # noqa: PTH207  (absolute, with the pattern anywhere in it)
    return [str(file) for file in dict.fromkeys(found) if file.is_file() and file.stat().st_size and not file.name.startswith(".")]


def _unfinished(file: str) -> str:
    """Return a file's last line where it has no line end yet: somebody may be writing it."""
    with open(file, "rb") as handle:
        size = handle.seek(0, os.SEEK_END)
        handle.seek(max(0, size - (1 << 20)))
        last = handle.read().rpartition(b"\n")[2]
    return last.decode("utf-8", "replace").strip()


def _judged(record: Record | Unusable, digest: str, number: int, origin: Origin, policy: Policy) -> ArrivedRecord:
    fields = _fields(record.raw, bool(origin.redis))
    rated = disliked = None
    if isinstance(record, Record):
        rated, answered = _number(_rating(record)), record
        record = _as_people_said(answered, fields, policy.keep.good)
        if record is not answered and (isinstance(record, Record) or record.reason == RATED_BAD):
            disliked = _key_of(answered, policy)
    row = cleared(record, policy.keep.redact, policy.keep.consent, Counter())
    domain, person = (named_in(fields, field) for field in (policy.gate.domains, policy.keep.person))
    entry = _entry(record) if origin.redis else None
    if isinstance(row, Unusable):
        return ArrivedRecord(record.place, digest, number, entry, None, row.reason, row.detail, domain, person, rated, disliked)
    if policy.gate.domains and domain:
        row[policy.gate.domains] = domain
    return ArrivedRecord(record.place, digest, number, entry, row, "", "", domain, person, rated, disliked)


def _key_of(record: Record, policy: Policy) -> int | None:
    """Return the `row_key` of a record as it was answered; None where nothing of it would be kept."""
    row = cleared(record, policy.keep.redact, policy.keep.consent, Counter())
    return None if isinstance(row, Unusable) else row_key(row)


def _entry(record: Record | Unusable) -> str:
    return record.place.rpartition("/")[2]


def without_unknown_ratings(policy: Policy, came: list[ArrivedRecord]) -> tuple[list[ArrivedRecord], Json]:
    """Return the arrivals whose rating says good or bad, and of the others how many rows wait, and their ratings.

    Where a number is beyond -1, 0 and 1 nobody knows whether 1 is the best or the worst: all rows with a number above 0 wait.
    """
    scale = policy.keep.good is None and any(one.rated is not None and one.rated not in _THUMBS for one in came)
    waits = [one.reason == UNKNOWN_RATING or (scale and one.reason in ("", RATED_BAD) and (one.rated or 0) > 0) for one in came]
    ratings = {f"{one.rated:g}" if one.rated is not None else one.detail for one, wait in zip(came, waits, strict=True) if wait}
    return [one for one, wait in zip(came, waits, strict=True) if not wait], {"rows": sum(waits), "ratings": sorted(ratings)[:_MOST_TOLD]}


def _rating(record: Record) -> Any:
    """Return what people said of an answer, None where they said nothing; an object, where none of its fields is known."""
    said = record.rating
    if not isinstance(said, dict):
        return said
    return next((said[name] for name in ("value", *RATINGS) if said.get(name) is not None), said or None)


def _number(value: Any) -> float | None:
    """Return a rating as a number; None where it is a word, or none."""
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None
    return found if found is not None and math.isfinite(found) else None


def _is_good(value: Any, good: float | list[str] | None) -> bool | None:
    """True if a rating says that the answer is good; None where it is not known what it says."""
    number, word = _number(value), str(value).strip().lower()
    if isinstance(value, dict | list):
        return None
    if isinstance(good, list):
        told = {word} if number is None else {word, f"{number:g}"}  # 5.0 is 5
        return bool(told & {one.strip().lower() for one in good})
    if number is not None:
        return number >= (good if good is not None else 0.5)
    return True if word in _GOOD else False if word in _BAD else None


def _as_people_said(record: Record, fields: Json, good: float | list[str] | None) -> Record | Unusable:
    """Return a corrected answer in place of the one that was given; nothing of an answer that was found bad."""
    if fields.get("voted") == "same":
        return Unusable(record.place, "", "no_preference", "neither answer was preferred")
    told = record.rating if isinstance(record.rating, dict) else fields
    given = next((name for name in _CORRECTIONS if isinstance(told.get(name), str) and told[name].strip()), "")
    correction: Any = told[given] if given else None
    if given == "preferred" and isinstance(named := fields.get(correction), str):  # preferred: response_b, which stands beside it
        correction = named
    elif given == "preferred" and _SIDE.fullmatch(correction.strip()):
        return Unusable(record.place, "", UNKNOWN_RATING, f"preferred {correction.strip()}"[:_LONGEST])
    if correction:
        return record._replace(row=_with_answer(record.row, correction))
    value = _rating(record)
    if value is None or (found := _is_good(value, good)):
        return record
    if found is None:
        return Unusable(record.place, "", UNKNOWN_RATING, str(value)[:_LONGEST])
    return Unusable(record.place, "", RATED_BAD, f"its people said {value!r}, and gave no correction")


def _with_answer(row: Json, text: str) -> Json:
    if isinstance(row.get("messages"), list) and row["messages"]:
        return row | {"messages": [*row["messages"][:-1], {"role": "assistant", "content": text}]}
    name = next((name for name in ("completion", "output", "response", "answer") if name in row), "completion")
    return row | {name: text}


def _fields(raw: str, whole: bool) -> Json:
    """Return the fields beside and inside of a record. whole: one of a stream may hold all of it, as JSON."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    of_stream: Json = next((value[name] for name in ONE_FIELD if whole and isinstance(value.get(name), dict)), {})
    value = value | of_stream
    inner: list[Any] = [value.get("metadata"), value.get("request")]
    for one in inner:
        if isinstance(one, dict):
            value = one | value
    return value


def named_in(fields: Json, field: str | None) -> str:
    """Return what a field names; "" where it names nothing."""
    found = fields.get(field) if field else None
    return found if isinstance(found, str) else "" if found is None else json.dumps(found)
