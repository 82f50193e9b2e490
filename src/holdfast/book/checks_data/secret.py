"""Keys and tokens that open something."""

import re

from holdfast.book.kinds.data_check import DataCheck, RowView
from holdfast.privacy.secret_forms import KEY_FORMS

# One of these stands in every key or token; the forms with "_" are told by one search, since each search goes through the whole text.
_PARTS = ("PRIVATE KEY-----", "AGE-SECRET-KEY-1", "pypi-AgE", "glpat-", "AKIA", "ASIA", "AIza", ".eyJ", "xox", "SG.")
_BEHIND_LINE = re.compile(
    r"_(?:(?<=gh[pousr]_)[A-Za-z0-9]{36}|(?<=npm_)[A-Za-z0-9]{36}|(?<=hf_)[A-Za-z]{34}|(?<=k_live_)[A-Za-z0-9]{24}|(?<=hub_pat_)\w{60})"
)
_BEHIND_SK = re.compile(r"sk-(?<=\bsk-)[A-Za-z0-9_-]{32}")


def _may_hold_one(text: str) -> bool:
    if any(part in text for part in _PARTS) or _BEHIND_LINE.search(text):
        return True
    return "sk-" in text and _BEHIND_SK.search(text) is not None


def look(row: RowView) -> str:
    found = next((match[0] for match in KEY_FORMS.finditer(row.text) if "EXAMPLE" not in match[0]), "")
    return f"what looks like a key or token, beginning {found[:8]!r}" if found else ""


def redact(text: str) -> str:
    return KEY_FORMS.sub(lambda match: match[0] if "EXAMPLE" in match[0] else "[SECRET]", text)


CARD = DataCheck(
    title="A secret in a text",
    why=(
        "What stands in training data can be asked out of the model again. "
        "A key that was in a data set counts as published: replace it where it is used."
    ),
    source=[
        "https://arxiv.org/abs/2012.07805",
        "https://docs.github.com/en/code-security/secret-scanning/introduction/supported-secret-scanning-patterns",
    ],
    verdict="note",
    screen=_may_hold_one,
    look=look,
    mend=redact,
    hits=[
        {"answer": "export AWS_ACCESS_KEY_ID=AKIA" + "Q7ZK" * 4},
        {"prompt": "-----BEGIN RSA PRIVATE " + "KEY-----\nMII"},
        {"answer": "x" + "\nghp_" + "a1B2" * 9},
    ],
    misses=[{"answer": "AKIAIOSFODNN7EXAMPLE"}, {"answer": "the disk-usage of sk-learn"}, {"answer": "-----BEGIN CERTIFICATE-----"}],
)
