"""Records from a Redis stream, read as one of a consumer group: an entry is acknowledged once its row is on the disk, and not before.

An entry that was delivered and not acknowledged, to this consumer before a kill or to one that is gone, comes again; a row that was
written already is then a duplicate. Redis streams and groups: https://redis.io/docs/latest/develop/data-types/streams/.
"""

from __future__ import annotations

import functools
import importlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from holdfast.base.errors import BLOCKED, GAVE_UP, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.versions import install
from holdfast.data.collect.pairs import consent_of, record_of
from holdfast.data.collect.record import Record, Unusable, WriteBatch

KIND = "redis"
_AT_ONCE = 256
_WAIT_MS = 500
_GONE = "it was trimmed from the stream before its row was read"
_NOT_NOW = ("MISCONF", "NOREPLICAS", "UNBLOCKED")  # answers of a server that has a full disk, lost its replicas, or is being replaced
ONE_FIELD = ("data", "json", "payload", "message", "record", "value")


@dataclass(frozen=True)
class StreamSource:
    """A stream and how it is read. What another consumer left for `idle_s` is taken over; a server may be away for `patience_s`."""

    url: str
    stream: str
    group: str = "holdfast"
    consumer: str = "collect"
    follow: bool = False
    idle_s: float = 60.0
    patience_s: float = 60.0
    cluster: bool = False

    @property
    def shown(self) -> str:
        """The address without its password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


class StreamReader:
    """Reads a stream to its end, or for ever with `follow`; goes on where the server went away and came back."""

    def __init__(
        self, source: StreamSource, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        try:
            self._redis: Any = importlib.import_module("redis")
        except ImportError:
            raise Stop(USAGE, "a Redis stream needs the package redis", install("redis")) from None
        self._source, self._sleep, self._clock = source, sleep, clock
        self.reconnected = self.gone = 0
        errors = self._redis.exceptions
        self._away = (errors.ConnectionError, errors.TimeoutError, errors.ClusterDownError, errors.MovedError, errors.RedisClusterException)
        self._replaced = (errors.ReadOnlyError, errors.TryAgainError)  # another server has its place, or is about to
        try:
            self._client: Any = self._patiently(self._connect)
        except ValueError as error:
            raise Stop(USAGE, f"{source.shown}: {error}", "for example: redis://127.0.0.1:6379/0") from None

    def _connect(self) -> Any:
        """Return a client, or one of a cluster, which asks the nodes for their places: it connects at once."""
        times = {"socket_timeout": 30, "socket_connect_timeout": 5}
        if self._source.cluster:
            return importlib.import_module("redis.cluster").RedisCluster.from_url(self._source.url, **times)
        retry = importlib.import_module("redis.retry").Retry(importlib.import_module("redis.backoff").NoBackoff(), 0)
        return self._redis.Redis.from_url(self._source.url, retry=retry, **times)

    def there(self) -> Iterator[WriteBatch]:
        """Yield the entries present now, each once, unacknowledged: `acknowledge` does that, later and perhaps in another process.

        One that was trimmed from the stream after it was delivered is a record, too. Raises Stop(2) for a stream that is not there, Stop(3)
        where the server stays away.
        """
        self._patiently(self._join)
        for entries in self._patiently_each():
            lost = [Unusable(f"{self._source.stream}/{_text(name)}", "", "gone", _GONE) for name, fields in entries if not fields]
            batch = self._batch(entries)
            yield batch._replace(records=[*batch.records, *lost])

    def exists(self) -> bool:
        """True if the stream is there. Raises Stop(3) where the server stays away."""
        return bool(self._patiently(lambda: self._client.exists(self._source.stream)))

    def acknowledge(self, names: list[str]) -> None:
        """Take entries off the list of what is pending; those that are off it stay so. Raises Stop(3) where the server stays away."""
        for begin in range(0, len(names), _AT_ONCE):
            some = names[begin : begin + _AT_ONCE]
            self._patiently(functools.partial(self._client.xack, self._source.stream, self._source.group, *some))

    def batches(self) -> Iterator[WriteBatch]:
        """Yield this consumer's unacknowledged entries, then those of consumers that are gone, then new ones.

        Raises Stop(2) for a stream that is not there, Stop(3) where the server stays away.
        """
        self._patiently(self._join)
        while True:
            before = self.reconnected
            read = False
            for entries in self._patiently_each():
                read = True
                yield self._batch(entries)
            if not read and before == self.reconnected and not self._source.follow:
                return

    def _patiently_each(self) -> Iterator[list[Any]]:
        """Yield the entries of one round: pending ones until there are none, abandoned ones, then new ones."""
        last = "0"
        while entries := self._patiently(functools.partial(self._read, last)):
            yield entries
            last = _text(entries[-1][0])
        while entries := self._patiently(self._claim):
            yield entries
        while entries := self._patiently(lambda: self._read(">")):
            yield entries

    def _join(self) -> None:
        """Join the group, or create it: it begins at the stream's first entry."""
        if not self._client.exists(self._source.stream):
            found = sorted(_text(key) for key in self._client.scan_iter(count=1000, _type="stream"))[:10]
            hint = f"streams there: {', '.join(found)}" if found else "there is no stream at all in this database"
            raise Stop(USAGE, f"{self._source.shown} has no stream {self._source.stream}", hint)
        try:
            self._client.xgroup_create(self._source.stream, self._source.group, id="0")
        except self._redis.exceptions.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def _read(self, start: str) -> list[Any]:
        block = _WAIT_MS if start == ">" and self._source.follow else None
        names = {self._source.stream: start}
        try:
            answer = self._client.xreadgroup(self._source.group, self._source.consumer, names, count=_AT_ONCE, block=block)
        except self._redis.exceptions.ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            self._join()  # the server came back without what it had kept
            return []
        found = answer.values() if isinstance(answer, dict) else [entries for _, entries in answer or ()]
        return [entry for entries in found for entry in (entries[0] if entries and isinstance(entries[0], list) else entries)]

    def _claim(self) -> list[Any]:
        answer = self._client.xautoclaim(
            self._source.stream, self._source.group, self._source.consumer, int(self._source.idle_s * 1000), count=_AT_ONCE
        )
        deleted = answer[2] if len(answer) > 2 else ()  # Redis 7 takes them off the list of what is pending
        return [*answer[1], *((name, None) for name in deleted)]

    def _batch(self, entries: list[Any]) -> WriteBatch:
        records = [self._record(_text(name), fields) for name, fields in entries if fields]
        names = [name for name, _ in entries]
        self.gone += len(names) - len(records)  # trimmed from the stream while they were waited for
        return WriteBatch(records, lambda: self._patiently(lambda: self._client.xack(self._source.stream, self._source.group, *names)))

    def _record(self, name: str, fields: dict[bytes, bytes]) -> Record | Unusable:
        place = f"{self._source.stream}/{name}"
        value = {_text(key): _value(item) for key, item in fields.items()}
        raw = json.dumps(value, ensure_ascii=False)
        return record_of(unpacked(value), place, raw, KIND)

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """Return the result of the call, repeated for as long as the server is away, or may not be written to. Raises Stop."""
        errors = self._redis.exceptions
        away: float | None = None
        pause_s = 0.1
        while True:
            try:
                return call()
            except (errors.AuthenticationError, errors.NoPermissionError) as error:
                raise Stop(USAGE, f"{self._source.shown} refuses us: {error}", "the address may carry a name and a password") from None
            except (*self._away, errors.ResponseError) as error:  # BusyLoadingError is one of them
                refused = not isinstance(error, self._away)
                if refused and not (isinstance(error, self._replaced) or str(error).startswith(_NOT_NOW)):
                    raise Stop(
                        BLOCKED, f"{self._source.shown}, stream {self._source.stream}: {error}", "Redis 6.2 or newer is needed"
                    ) from None
                now = self._clock()
                away = now if away is None else away
                if now - away >= self._source.patience_s:
                    hint = "nothing was acknowledged that is not written: put it right, then give the same command"
                    what = "refuses what it is asked" if refused else "cannot be reached"
                    raise Stop(GAVE_UP, f"{self._source.shown} {what} for {self._source.patience_s:g} s: {error}", hint) from None
                if refused and not self._source.cluster:
                    self._client.connection_pool.disconnect()  # the address may lead to another server now
                self.reconnected += 1
                self._sleep(pause_s)
                pause_s = min(2 * pause_s, 2.0)


def unpacked(entry: Json) -> Json:
    """Return the record in one field of an entry, with the rating and the consent that stand beside it; a no on either side is a no."""
    inner = next((entry[key] for key in ONE_FIELD if isinstance(entry.get(key), dict)), None)
    if inner is None:
        return entry
    beside = {key: item for key, item in entry.items() if item is not inner}
    known = [each for each in (beside, beside.get("metadata")) if isinstance(each, dict)]
    found: Json = beside | inner | ({"consent": False} if consent_of(known) is False else {})
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _value(item: bytes) -> Any:
    text = _text(item)
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text
