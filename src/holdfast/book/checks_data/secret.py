"""Keys and tokens that open something."""

from holdfast.core.datacheck import DataCheck, RowView
from holdfast.core.scrub import KEY_FORMS

_CODE = ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "npm_", "pypi-")
_BEGINNINGS = (*_CODE, "-----BEGIN", "AKIA", "ASIA", "sk-", "k_live_", "hf_", "xox", "AIza", "eyJ", "SG.", "AGE-")


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
