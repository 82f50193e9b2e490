"""Take secrets and personal data out of texts before they are written anywhere. Rather too much than too little; keeps nothing of them."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from holdfast.data.judge.tool_calls import loaded
from holdfast.privacy.scrub import ADDRESS_FORM
from holdfast.privacy.secret_forms import BLOCK_FORMS, KEY_FORMS, PASSWORD_WORDS, PLACED_FORMS

Level = Literal["all", "secrets", "none"]
_WELL_KNOWN = {"8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9", "208.67.222.222", "208.67.220.220"}
_NOBODY = re.compile(
    r"(?i)^(?:git|users?|username|login|me|you|name|root|ubuntu|ec2-user|admin|test|noreply|no-reply)@|@(?:[\w.-]+\.)?(?:example|test|localhost|invalid)\b"
)
_HOMES = {"user", "username", "ubuntu", "ec2-user", "runner", "app", "me", "you", "shared", "linuxbrew"}
_PLACEHOLDER = re.compile(
    r"(?i)^(?:\W*|x+|\*+|\.+|\[\w+\]|your[-_]?.*|my[-_]?.*|changeme|example.*|placeholder|none|null|true|false|string|str|(?-i:\$\{?[A-Z][A-Z0-9_]{2,}\}?))$"
)


class _Kind(NamedTuple):
    """What is looked for: the group `it` of the pattern is replaced, where `holds` says yes to it."""

    name: str
    pattern: re.Pattern[str]
    holds: Callable[[str], bool] = lambda _: True
    secret: bool = True


def _luhn(text: str) -> bool:
    digits = [int(character) for character in text if character.isdigit()]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2]]
    return 13 <= len(digits) <= 19 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0 and len(set(digits)) > 1


def _iban(text: str) -> bool:
    plain = text.replace(" ", "")
    return 15 <= len(plain) <= 34 and int("".join(str(int(character, 36)) for character in plain[4:] + plain[:4])) % 97 == 1


def _public_address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global and text not in _WELL_KNOWN
    except ValueError:
        return False


def _looks_secret(text: str) -> bool:
    return not _PLACEHOLDER.match(text) and bool(re.search(r"[\d!@#%^&*+/=-]", text) or len(text) > 20)


_KINDS = (
    _Kind("SECRET", re.compile(f"(?P<it>{KEY_FORMS.pattern})", KEY_FORMS.flags), lambda text: "EXAMPLE" not in text),
    _Kind(
        "SECRET", re.compile(r"(?P<it>\b(?:sk-(?:proj-|ant-|or-)?|gh[pousr]_|hf_|xox[abeprs]-|dop_v1_)(?=[A-Za-z_-]{0,200}\d)[\w-]{16,})")
    ),
    _Kind("SECRET", re.compile(r"(?i)\b(?:bearer|basic)\s+(?P<it>[A-Za-z0-9._~+/=-]{16,})")),
    _Kind("SECRET", re.compile(r"://[^\s/:@]*:(?P<it>[^\s/\"'<>]+)@"), lambda text: not _PLACEHOLDER.match(text)),
    *(_Kind("SECRET", form, lambda text: not _PLACEHOLDER.match(text)) for form in (*BLOCK_FORMS, *PLACED_FORMS)),
    _Kind(
        "SECRET",
        re.compile(
            rf"(?i)(?<![\w.-])[\w.-]*(?:{PASSWORD_WORDS}|secret|token(?!s\W{{1,6}}[\d.,_]+(?!\w))|api[_-]?key|access[_-]?key|private[_-]?key|credential)s?"
            r"(?:\\{0,7}[\"']\]?)?\s*(?:[:：]|=>?|->)[^\S\n]*(?:\\{0,7}[\"'])?(?P<it>[^\s\"'`,;()<>{}$\[\]]{6,})"
        ),
        _looks_secret,
    ),
    _Kind(
        "EMAIL",
        re.compile(f"(?P<it>{ADDRESS_FORM.pattern})"),
        lambda text: not _NOBODY.search(text) and not text.endswith((".service", ".socket", ".target", ".timer")),
        secret=False,
    ),
    _Kind("IBAN", re.compile(r"\b(?P<it>[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?)\b"), _iban, secret=False),
    _Kind("CARD", re.compile(r"(?<![\w.-])(?P<it>\d(?:[ -]?\d){12,18})(?![\w.-]*\d)"), _luhn, secret=False),
    _Kind("PHONE", re.compile(r"(?<![\w+])(?P<it>\+\d[\d ()./-]{7,}\d|\(\d{3}\) ?\d{3}-\d{4})(?!\w)"), secret=False),
    _Kind("SSN", re.compile(r"(?<![\w-])(?P<it>(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4})(?![\w-])"), secret=False),
    _Kind(
        "IP",
        re.compile(r"(?i)(?<![\w.])(?<!version )(?<!release )(?P<it>(?:\d{1,3}\.){3}\d{1,3})(?![\w.]*\d)"),
        _public_address,
        secret=False,
    ),
    _Kind("USER", re.compile(r"/(?:home|Users)/(?P<it>[A-Za-z0-9._-]+)"), lambda text: text.lower() not in _HOMES, secret=False),
)


_PLACEHOLDER_OR_TEXT = re.compile(rf'"(?:[^"\\]|\\.)*"?|\[(?:{"|".join(sorted({kind.name for kind in _KINDS}))})\]')


def redact(text: str, level: Level, found: Counter[str]) -> str:
    """Replace personal data in the text by [EMAIL] and the like; `found` counts it by kind. Idempotent; JSON stays JSON."""
    if level == "none":
        return text
    before = text
    for kind in _KINDS:
        if kind.secret or level == "all":
            text = _replaced(text, kind, found)
    if text != before and loaded(before) is not None and loaded(text) is None:  # what stood there was a number
        return _PLACEHOLDER_OR_TEXT.sub(lambda match: match[0] if match[0][0] == '"' else f'"{match[0]}"', text)
    return text


def redact_all(value: Any, level: Level, found: Counter[str]) -> Any:
    """Redact every text in a JSON value as `redact` does, its keys excepted."""
    if isinstance(value, str):
        return redact(value, level, found)
    if isinstance(value, list):
        return [redact_all(item, level, found) for item in value]
    if isinstance(value, dict):
        return {key: redact_all(item, level, found) for key, item in value.items()}
    return value


def _replaced(text: str, kind: _Kind, found: Counter[str]) -> str:
    def replace(match: re.Match[str]) -> str:
        it = match["it"]
        if it.startswith("[") or not kind.holds(it):
            return match[0]
        found[kind.name.lower()] += 1
        start = match.start("it") - match.start()
        return f"{match[0][:start]}[{kind.name}]{match[0][start + len(it) :]}"

    return kind.pattern.sub(replace, text)
