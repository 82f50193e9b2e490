"""No label token is predicted right from the start on."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.base.files import Json
from holdfast.book.kinds.sign import Sign

_STEPS, _LABELS, _SHARE = 10, 400, 1 / 200


def look(steps: Sequence[Json]) -> str | None:
    first = [row for row in steps[:_STEPS] if row.get("token_accuracy") is not None and row.get("labels")]
    labels = sum(row["labels"] for row in first)
    right = sum(row["token_accuracy"] * row["labels"] for row in first)
    if len(steps) < _STEPS or steps[0]["step"] != 1 or labels < _LABELS or right >= _SHARE * labels:
        return None
    told = f"{round(right)} of the {labels:,} label tokens of the first {_STEPS} steps were predicted right"
    return f"{told}: the model does not know such labels; look at the chat template, the tokenizer, and which tokens are learned"


CARD = Sign(
    cause="tokenizer_or_template",
    title="token accuracy 0 from the start",
    why=(
        "A model that was trained before predicts some tokens of any text right, one with random weights those that are frequent. Where "
        "hardly any is, labels are shifted, shuffled, of another tokenizer or of no language, and a loss that falls means little."
    ),
    source=["https://github.com/huggingface/trl/pull/6025"],
    look=look,
    hits=[
        {"token_accuracy": [0.0] * 10, "labels": [60] * 10},
        {"token_accuracy": [0.0] * 9 + [0.01], "labels": [100] * 10, "loss": [6.0 - at / 10 for at in range(10)]},
    ],
    misses=[
        {"token_accuracy": [0.0] * 9, "labels": [60] * 9},
        {"token_accuracy": [0.0] * 10, "labels": [30] * 10},
        {"token_accuracy": [0.0] * 8 + [0.02, 0.05], "labels": [60] * 10},
        {"loss": [3.0] * 10, "labels": [60] * 10},
        {"step": list(range(11, 31)), "token_accuracy": [0.0] * 20, "labels": [60] * 20},
    ],
)
