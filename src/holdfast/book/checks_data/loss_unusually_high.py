"""The base model finds the answer far less likely than the answers of the other rows."""

from holdfast.book.kinds.data_check import DataCheck, RowView

_FAR = 5.0  # deviations; of normally distributed losses one in three million lies as far


def look(row: RowView) -> str:
    if row.loss is None or row.deviation is None or row.deviation < _FAR:
        return ""
    return f"mean loss {row.loss:.2f} nats, {row.deviation:.1f} deviations above the median of the rows"


CARD = DataCheck(
    title="The loss of the answer is unusually high",
    why=(
        "An answer that fits nothing the model knows is often a wrong one, of another row, in another language, or damaged. "
        "Such rows make the largest gradients of the set."
    ),
    source=["https://arxiv.org/abs/2309.04564"],
    verdict="note",
    second_look=True,
    look=look,
    hits=[{"answer": "x", "loss": 11.2, "deviation": 6.5}],
    misses=[{"answer": "x", "loss": 4.0, "deviation": 3.0}, {"answer": "x", "loss": 0.1, "deviation": -6.5}, {"answer": "x"}],
)
