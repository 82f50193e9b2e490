"""A feature that says nearly all of the target."""

from holdfast.book.kinds.table_check import TableCheck, of_columns

CARD = TableCheck(
    title="A feature that says nearly all of the target",
    why="A correlation of 1 with the target is rare outside of copies in another unit. It may be made from what is to be learned.",
    source=["https://scikit-learn.org/stable/common_pitfalls.html"],
    severity="warn",
    fix="make sure that it is known before the target is, or leave it out with table.ignore",
    look=of_columns(
        "features in a straight line with the target: {}",
        lambda one: f"{one.name} ({one.target_correlation:.5f})" if one.target_correlation > 0.9999 >= one.target_match else "",
    ),
    hits=[{"columns": [{"name": "a", "target_correlation": 0.99999}]}],
    misses=[
        {"columns": [{"name": "a", "target_correlation": 0.99}]},
        {"columns": [{"name": "a", "target_correlation": 1.0, "target_match": 1.0}]},
    ],
)
