"""Bring records of real use into one file: consent first, then redaction, then what is there already. Reads no source itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.files import Json
from holdfast.data.collect.outfile import OutFile, append
from holdfast.data.collect.record import Record, Unusable, WriteBatch
from holdfast.data.collect.redact import Level, redact, redact_all
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.turns import BadRow

_RAW_KEPT = 1 << 16  # characters of a reject


@dataclass
class CollectedRecords:
    """What became of the records: `read` = rows + duplicates + rejected."""

    rows: int = 0
    duplicates: int = 0
    by_category: Counter[str] = field(default_factory=Counter)
    by_reason: Counter[str] = field(default_factory=Counter)
    redacted: Counter[str] = field(default_factory=Counter)
    rated: int = 0

    @property
    def rejected(self) -> int:
        return sum(self.by_reason.values())

    @property
    def read(self) -> int:
        return self.rows + self.duplicates + self.rejected


Progress = Callable[[CollectedRecords], None]


def gather(
    batches: Iterable[WriteBatch], out: OutFile, rejects: Path, level: Level, needs_consent: bool, progress: Progress = lambda _: None
) -> CollectedRecords:
    """Write what can be trained on into `out`, the rest with its reason into `rejects`. Raises OSError.

    A batch is on the disk, ratings included, before its source is told so.
    """
    found = CollectedRecords()
    for batch in batches:
        rows: list[Json] = []
        refused: list[Json] = []
        for record in batch.records:
            row = cleared(record, level, needs_consent, found.redacted)
            if isinstance(row, Unusable):
                refused.append(_reject(row, level))
                found.by_reason[row.reason] += 1
            else:
                rows.append(row)
        append(rejects, refused)
        for row, is_new in zip(rows, out.add(rows), strict=True):
            found.rows += is_new
            found.duplicates += not is_new
            found.rated += is_new and "rating" in row
            found.by_category.update([row["category"]] if is_new else [])
        if batch.written:
            out.keep_ratings()
            batch.written()
        progress(found)
    out.keep_ratings()
    return found


def cleared(record: Record | Unusable, level: Level, needs_consent: bool, redacted: Counter[str]) -> Json | Unusable:
    """Return the row as it is written, or the reason why it is left out."""
    if isinstance(record, Unusable):
        return record
    if record.consent is False:
        return Unusable(record.place, "", "no_consent", "its people said no; nothing of it is kept here")
    if needs_consent and record.consent is None:
        return Unusable(record.place, "", "consent_unknown", "nobody was asked, and --require-consent is given; nothing of it is kept here")
    row: Json = redact_all(record.row, level, redacted) | {"category": record.category}
    if record.rating is not None:
        row["rating"] = redact_all(record.rating, level, redacted)
    if record.consent:
        row["consent"] = True
    row["source"] = record.place
    try:
        parse_example(row, "auto")
    except BadRow as bad:
        return Unusable(record.place, record.raw, bad.reason, bad.detail)
    return row


def _reject(record: Unusable, level: Level) -> Json:
    file, _, line = record.place.rpartition(":")
    place: Json = {"file": file, "line": int(line)} if line.isdigit() else {"file": record.place, "line": None}
    entry = place | {"reason": record.reason, "detail": redact(record.detail, level, Counter())}
    return entry | ({"raw": redact(record.raw[:_RAW_KEPT], level, Counter())} if record.raw else {})
