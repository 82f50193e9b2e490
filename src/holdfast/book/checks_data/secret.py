"""Keys and tokens that open something."""

import re

from holdfast.core.datacheck import DataCheck, RowView

_BEGINNINGS = ("-----BEGIN", "AKIA", "ASIA", "ghp_", "gho_", "github_pat_", "glpat-", "sk-", "hf_", "xox", "AIza", "eyJ")
_SECRET = re.compile(
    r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bgh[po]_[A-Za-z0-9]{36}\b|\bgithub_pat_\w{60,}|\bglpat-[\w-]{20}\b"
    r"|\bsk-(?:proj-|ant-)?[A-Za-z0-9_-]{32,}|\bhf_[A-Za-z]{34}\b|\bxox[abpr]-[A-Za-z0-9-]{20,}|\bAIza[\w-]{35}\b"
    r"|\beyJ[\w-]{15,}\.eyJ[\w-]{15,}\.[\w-]{20,}"
)


def look(row: RowView) -> str:
    found = _SECRET.search(row.text)
    return f"what looks like a key or token, beginning {found[0][:8]!r}" if found and "EXAMPLE" not in found[0] else ""


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
    screen=lambda text: any(beginning in text for beginning in _BEGINNINGS),
    look=look,
    hits=[{"answer": "export AWS_ACCESS_KEY_ID=AKIA" + "Q7ZK" * 4}, {"prompt": "-----BEGIN RSA PRIVATE " + "KEY-----\nMII"}],
    misses=[{"answer": "AKIAIOSFODNN7EXAMPLE"}, {"answer": "the disk-usage of sk-learn"}, {"answer": "-----BEGIN CERTIFICATE-----"}],
)
