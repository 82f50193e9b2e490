"""The base model knows the answer already."""

from holdfast.book.kinds.data_check import DataCheck, RowView

_FAR = -2.5  # deviations: a loss cannot go below 0, so fewer than above are far
_KNOWN = 0.5  # nats: on average the model gives each token a chance of 60 %


def look(row: RowView) -> str:
    if row.loss is None or row.deviation is None or row.deviation > _FAR or row.loss > _KNOWN:
        return ""
    return f"mean loss {row.loss:.2f} nats, {-row.deviation:.1f} deviations below the median of the rows"


CARD = DataCheck(
    title="The loss of the answer is unusually low",
    why=(
        "The model gives this answer as it is: it stands in what the model was trained on, is copied from the prompt, or repeats itself. "
        "Nothing is learned from such a row, and a held-out row of this kind measures nothing."
    ),
    source=["https://arxiv.org/abs/2309.04564", "https://arxiv.org/abs/2202.07646"],
    verdict="note",
    second_look=True,
    look=look,
    hits=[{"answer": "x", "loss": 0.02, "deviation": -4.1}],
    misses=[
        {"answer": "x", "loss": 0.3, "deviation": -1.0},
        {"answer": "x", "loss": 2.0, "deviation": -3.6},
        {"answer": "x", "loss": 9.0, "deviation": 4.1},
        {"answer": "x"},
    ],
)
