"""Keys and tokens that open something."""

from holdfast.core.datacheck import DataCheck, RowView
from holdfast.core.scrub import KEY_FORMS

_BEGINNINGS = ("-----BEGIN", "AKIA", "ASIA", "ghp_", "gho_", "github_pat_", "glpat-", "sk-", "hf_", "xox", "AIza", "eyJ")


def look(row: RowView) -> str:
    found = KEY_FORMS.search(row.text)
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
