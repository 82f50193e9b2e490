"""Take secrets and a person's traces out of text that is to be shown to others. Pure: whose names they are is given; it opens nothing.

What cannot be known is left: names in the text of rows, in file names, in what a program printed of itself.
"""

from __future__ import annotations

import re
from base64 import b64encode
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from holdfast.privacy.secret_forms import BLOCK_FORMS, KEY_FORMS, PASSWORD_WORDS, PLACED_FORMS, PRIVATE_KEY

# An address as it stands in the texts of rows; no part of a URL or a path.
ADDRESS_FORM = re.compile(r"(?<![\w.+/:-])[A-Za-z0-9][\w.+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b")
_LOOSE_FORMS = re.compile(
    r"\b(?:hf|gh[oprsu]|github_pat|glpat|wandb_v\d|sk|pk|rk)[_-](?=[A-Za-z_-]{0,200}\d)[A-Za-z0-9_-]{16,}"
)  # cut or newer ones
_SECRET_NAME = (
    rf"[\w.-]*(?:{PASSWORD_WORDS}|secret|credentials?|(?:api|access|private)[_-]?key|key[_-]?id|authorization"
    r"|(?:auth|access|hub|hf|api|bearer|refresh|session)[_-]?token|(?-i:[A-Z0-9]_(?:TOKEN|KEY|PASS|PWD)))(?:[_-]?id)?(?:[_-]?\d{1,3})?"
)
_TAG = r"(?:[!&][\w!.-]{0,40} +){0,2}"  # of YAML, before a value
_QUOTED_TWICE = r"""\\{1,7}["'][^"'\\\n]{0,2000}\\{1,7}["']"""  # as in a text inside JSON
_VALUE = rf"""({_QUOTED_TWICE}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|(?:(?:Bearer|Basic|token|api-?key|negotiate) +)?[^\s"',;}}\]»”]+)"""
_BETWEEN = rf"""(?:[ \t]*(?:[:=：]>?|->)[ \t]*{_TAG}(?:[«„“‹][ \xa0]?)?| +(?=["'](?![\s$<{{}}\],:])))"""  # a name and its value
_NAMED = re.compile(rf"""(["']?(?<![\w.-]){_SECRET_NAME}(?:\\{{0,7}}["']\]?)?{_BETWEEN})""" + _VALUE, re.I)
_BARE_TOKEN = re.compile(r"""((?<![\w-])(?:--)?token["']?(?: *[:=] *| +))["']?((?=[\w.-]*\d)(?=[\w.-]*[A-Za-z])[\w.-]{16,})["']?""", re.I)
_OPTION = re.compile(rf"((?<![\w-])--(?=[\w-]*(?:{PASSWORD_WORDS}|secret|api[_-]?key|token)\b){_SECRET_NAME} +)([^\s\"',\]-]\S*)", re.I)
_BEARER = re.compile(r"(\b(?:Bearer|Basic) )([A-Za-z0-9._~+/=-]{12,})")
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://)([^\s/@:\"']*:[^\s/\"'<>]+|[A-Za-z0-9_-]{16,})(?=@)")
_QUERY = re.compile(r"([?&](?:[\w-]*(?:token|key|signature|secret|sig|credential|password))=)([^\s&\"']+)", re.I)
_NOTHING = re.compile(
    r"""["']?(?:null|none|true|false|unset|not set|\d{1,3}|\[secret\]|\*+|<[\w ]*>|(?-i:\$\{?[A-Z][A-Z0-9_]{2,}\}?)|)["']?""", re.I
)
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}\b")
_MAILBOX = re.compile(r"(?<=<)[\w.+-]{1,80}@[\w.-]{1,80}(?=>)")
_KEY_COMMENT = re.compile(  # of a public key of ssh: whose it is
    r"((?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-[\w-]{1,30}|sk-(?:ssh|ecdsa)-[\w@.-]{1,60}) AAAA[A-Za-z0-9+/]{8,}={0,3}[ \t]+)"
    r"([^\n\"']{1,200})"
)
_ADDRESS = re.compile(
    r"(?<![\d.])(?:192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}(?![\d.]*\d)"
    r"|(?<=[<\[@/(])10\.\d{1,3}\.\d{1,3}\.\d{1,3}\b|(?<![\d.=])10\.\d{1,3}\.\d{1,3}\.\d{1,3}(?=[:<])"
    r"|\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b|(?i:(?<![\w:])(?:fe80|fd[0-9a-f]{2}):[0-9a-f:]{2,40}(?:%\w{1,20})?)"
)
_INNER_HOST = re.compile(
    r"(?<![\w./-])(?=[\w.-]{0,60}[-\d])[A-Za-z][\w-]{0,62}(?:\.[\w-]{1,63}){0,5}\.(?:internal|intranet|corp|lan|localdomain)\b"
)
_HOST_FIELD = re.compile(r"""((?P<quote>\\{0,7}["'])host_?(?:name)?(?P=quote)\s*:\s*(?P=quote))([\w.-]+)(?=(?P=quote))""", re.I)
_HOMES = re.compile(r"(?:/home/|/[Uu]sers/|\\{1,2}Users\\{1,2})([^/\\\s\"':,;]+)")
_ORDINARY = {
    "root",
    "user",
    "users",
    "ubuntu",
    "debian",
    "admin",
    "home",
    "runner",
    "shared",
    "public",
    "localhost",
    "none",
    "data",
    "train",
}
SHORTEST_SECRET, SHORTEST_NAME = 6, 3
# Where a terminal broke a secret: alone; perhaps in a frame, in a text or a list of JSON, or before the number of the log's next line.
_BREAK = re.compile(r"\r?\n|\\r\\n|\\n")
_FRAMED = re.compile(rf"[ \t│|]{{0,40}}(?:{_BREAK.pattern}|\",\s{{0,20}}\")(?:\d{{1,9}}: )?[ \t│|]{{0,40}}")
_GAPS: tuple[tuple[re.Pattern[str] | None, str], ...] = ((None, ""), (_BREAK, ""), (_FRAMED, ""), (_FRAMED, " "))  # with what each held


@dataclass(frozen=True)
class Person:
    """Whose traces are to go. `paths`: folders by what is to stand for each, the longest first; `secrets`: values known to be some."""

    users: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    paths: Mapping[str, str] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()


def secrets_of(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the values of variables whose names say that they open something."""
    telling = ("TOKEN", "SECRET", "PASSW", "PASSPHRASE", "_KEY", "APIKEY", "CREDENTIAL", "_PWD")
    values = (value.strip() for name, value in environment.items() if any(word in name.upper() for word in telling))
    return frozenset(value for value in values if len(value) >= SHORTEST_SECRET and not value.replace(".", "").isdigit())


def names_in(texts: Iterable[str]) -> frozenset[str]:
    """Return the names of users, as the home folders in these texts tell them."""
    return frozenset(name for text in texts for name in _HOMES.findall(text) if not name.startswith(("[", "<", "~", "$", "*")))


def hosts_in(texts: Iterable[str]) -> frozenset[str]:
    """Return the names of machines in fields of these texts; of other machines, too, on which a run was."""
    return frozenset(match[3] for text in texts for match in _HOST_FIELD.finditer(text) if not _stock(match[3]))


class Scrubber:
    """Takes one person's traces out of texts, and counts what it took, by kind. The same text always becomes the same."""

    def __init__(self, person: Person) -> None:
        self.taken: Counter[str] = Counter()
        known = {form for secret in person.secrets if len(secret) >= SHORTEST_SECRET for form in _forms_of(secret)}
        self._known = [(gap, by, forms) for gap, by in _GAPS if (forms := _as_left(known, gap, by))]
        self._paths = {path.rstrip("/"): name for path, name in person.paths.items() if len(path) > 1}
        self._path = _any_of(self._paths, whole=False, after=r"(?![\w.-])")
        self._host = _any_of(_worth(person.hosts), whole=True)
        self._domain = _below({domain for host in person.hosts if "." in (domain := host.partition(".")[2])})
        self._user = _any_of(_worth(person.users), whole=True)

    def text(self, text: str) -> str:
        """Return the text without secrets, names and addresses."""
        text = _KEY_COMMENT.sub(self._comment, self.secrets(text))
        text = self._replace("email", _EMAIL, text, "[email]")
        text = self._replace("email", _MAILBOX, text, "[email]")
        text = self._path.sub(self._path_name, text) if self._path else text
        text = _HOST_FIELD.sub(self._host_field, text)
        for names in (self._host, self._domain, _INNER_HOST):
            text = self._replace("host", names, text, "[host]")
        text = self._replace("user", self._user, text, "[user]")
        return self._replace("address", _ADDRESS, text, "[address]")

    def secrets(self, text: str) -> str:
        """Return the text without secrets; names and addresses stay."""
        text = self._replace("secret", PRIVATE_KEY, text, "[secret]")
        text = self._without_known(text)
        for pattern in BLOCK_FORMS:
            text = pattern.sub(self._placed, text)
        for pattern in (_NAMED, _OPTION, _BARE_TOKEN, _BEARER, _IN_URL, _QUERY):
            text = pattern.sub(self._value, text)
        for pattern in PLACED_FORMS:
            text = pattern.sub(self._placed, text)
        for pattern in (KEY_FORMS, _LOOSE_FORMS):
            text = self._replace("secret", pattern, text, "[secret]")
        return text

    def _without_known(self, text: str) -> str:
        """Replace known secrets, also where a terminal broke them over lines; of two that overlap, both whole."""
        parts, at = [], 0
        for begin, end in sorted(place for gap, by, forms in self._known for place in _places(forms, text, gap, by)):
            parts += [text[at:begin], "[secret]"] if begin >= at else []
            at = max(at, end)
        self.taken["secret"] += len(parts) // 2
        return "".join([*parts, text[at:]])

    def _replace(self, kind: str, pattern: re.Pattern[str] | None, text: str, by: str) -> str:
        if pattern is None:
            return text
        text, count = pattern.subn(by, text)
        self.taken[kind] += count
        return text

    def _host_field(self, match: re.Match[str]) -> str:
        """Replace the name of a machine in a field of its own, however short it is."""
        if _stock(match[3]):
            return match[0]
        self.taken["host"] += 1
        return f"{match[1]}[host]"

    def _value(self, match: re.Match[str]) -> str:
        """Replace the value behind a telling name, within its quotes; what is plainly no secret stays."""
        value = match[2]
        if _NOTHING.fullmatch(value):
            return match[0]
        self.taken["secret"] += 1
        quote = found[0] if (found := re.match(r"""\\*["']""", value)) else ""
        return f"{match[1]}{quote}[secret]{quote}"

    def _placed(self, match: re.Match[str]) -> str:
        """Return the match with its secret replaced; what is plainly none, or was taken already, stays."""
        secret = match["it"]
        if "[secret]" in secret or _NOTHING.fullmatch(secret):
            return match[0]
        self.taken["secret"] += 1
        start = match.start("it") - match.start()
        return f"{match[0][:start]}[secret]{match[0][start + len(secret) :]}"

    def _comment(self, match: re.Match[str]) -> str:
        self.taken["user"] += 1
        return f"{match[1]}[user]"

    def _path_name(self, match: re.Match[str]) -> str:
        self.taken["path"] += 1
        return self._paths[match[0]]


def _stock(host: str) -> bool:
    """Return whether a name is that of no machine, or of every one."""
    return host.lower() in ("localhost", "none", "null") or host.startswith("127.") or host == "0.0.0.0"


def _worth(names: Iterable[str]) -> list[str]:
    """Select the names that tell a person or a machine: no stock name, and not so short that they are parts of everything."""
    return [name for name in names if len(name) >= SHORTEST_NAME and name.lower() not in _ORDINARY]


def _forms_of(secret: str) -> set[str]:
    """Return a secret as it is, as it stands in a URL, and in base64 at whatever place of a longer text."""
    forms = {secret, quote(secret, safe="")}
    raw = secret.encode()
    for before, begin in ((0, 0), (1, 2), (2, 3)):
        coded = b64encode(bytes(before) + raw).decode().rstrip("=")
        forms.add(coded[begin : len(coded) - ((before + len(raw)) % 3 > 0)])
    return {form for form in forms if len(form) >= SHORTEST_SECRET}


def _as_left(known: Iterable[str], gap: re.Pattern[str] | None, by: str) -> set[str]:
    """Return what is left of these forms where `by` stands for each gap, if that is long enough to be looked for."""
    found = {gap.sub(by, form) for form in known} if gap else set(known)
    return {form for form in found if len(form) >= SHORTEST_SECRET and by in form}


def _places(forms: Iterable[str], text: str, gap: re.Pattern[str] | None, by: str) -> Iterator[tuple[int, int]]:
    """Yield where each of these forms begins and ends in a text, looked for where `by` stands for each gap: in one pass, however broken."""
    parts, begins, gone, end = [], [0], [0], 0  # what stands between gaps, where it begins then, and how much is missing before it
    for one in gap.finditer(text) if gap else ():
        parts.append(text[end : one.start()])
        end = one.end()
        begins.append(one.start() - gone[-1] + len(by))
        gone.append(end - begins[-1])
    joined = by.join([*parts, text[end:]])
    for form in forms:
        at = joined.find(form)
        while at >= 0:
            last = at + len(form) - 1
            yield at + gone[bisect_right(begins, at) - 1], last + gone[bisect_right(begins, last) - 1] + 1
            at = joined.find(form, last + 1)


def _below(domains: set[str]) -> re.Pattern[str] | None:
    """Return a pattern of the names of machines below these domains."""
    either = "|".join(map(re.escape, sorted(domains)))
    return re.compile(rf"(?<![\w.-])[\w-]{{1,63}}(?:\.[\w-]{{1,63}}){{0,5}}\.(?:{either})(?![\w-])", re.I) if domains else None


def _any_of(words: Iterable[str], whole: bool, after: str = "") -> re.Pattern[str] | None:
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    if not longest_first:
        return None
    either = "|".join(map(re.escape, longest_first))
    return re.compile(rf"(?<![A-Za-z0-9])(?:{either})(?![A-Za-z0-9])" if whole else rf"(?:{either}){after}", re.I if whole else 0)
