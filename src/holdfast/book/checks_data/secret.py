"""Keys and tokens that open something."""

import re

from holdfast.core.datacheck import DataCheck, RowView

_CODE = ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "npm_", "pypi-")
_BEGINNINGS = (*_CODE, "-----BEGIN", "AKIA", "ASIA", "sk-", "k_live_", "hf_", "xox", "AIza", "eyJ", "SG.", "AGE-")
_SECRET = re.compile(
    r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----(?:\s*[\w-]+: [^\n]*\n)*(?:\s*[A-Za-z0-9+/=]{40,})*"
    r"(?:\s*[A-Za-z0-9+/=]*\s*-----END (?:[A-Z]+ )*PRIVATE KEY-----)?"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAGE-SECRET-KEY-1[A-Z0-9]{58}\b|\bSG\.[\w-]{22}\.[\w-]{43}\b"
    r"|\b[rs]k_live_[A-Za-z0-9]{24,}\b|\bnpm_[A-Za-z0-9]{36}\b|\bpypi-AgE[\w-]{50,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{36}\b|\bgithub_pat_\w{60,}|\bglpat-[\w-]{20}\b"
    r"|\bsk-(?:proj-|ant-)?[A-Za-z0-9_-]{32,}|\bhf_[A-Za-z]{34}\b|\bxox[abpr]-[A-Za-z0-9-]{20,}|\bAIza[\w-]{35}\b"
    r"|(?<![\w-])eyJ[\w-]{15,}\.eyJ[\w-]{15,}\.[\w-]{20,}"
)


def look(row: RowView) -> str:
    found = next((match[0] for match in _SECRET.finditer(row.text) if "EXAMPLE" not in match[0]), "")
    return f"what looks like a key or token, beginning {found[:8]!r}" if found else ""


def redact(text: str) -> str:
    return _SECRET.sub(lambda match: match[0] if "EXAMPLE" in match[0] else "[SECRET]", text)


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
    mend=redact,
    hits=[
        {"answer": "export AWS_ACCESS_KEY_ID=AKIA" + "Q7ZK" * 4},
        {"prompt": "-----BEGIN RSA PRIVATE " + "KEY-----\nMII"},
        {"answer": "x" + "\nghp_" + "a1B2" * 9},
    ],
    misses=[{"answer": "AKIAIOSFODNN7EXAMPLE"}, {"answer": "the disk-usage of sk-learn"}, {"answer": "-----BEGIN CERTIFICATE-----"}],
)
