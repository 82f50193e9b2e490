"""A progress bar that stands: when it is said, and when a slow or nested bar is none."""

from __future__ import annotations

import pytest

from holdfast.diagnosis.logs.progress_bars import standing_bar
from holdfast.diagnosis.logs.text import clean_lines


@pytest.mark.parametrize(
    ("why", "log", "seconds"),
    [
        (
            "the count stays and the time goes on",
            "37%|#| 465/1250 [31:02<52:20, 4.00s/it]\n37%|#| 465/1250 [2:44:10<52:20, 4.00s/it]",
            7988,
        ),
        ("the first step never ends", "0%| | 0/1250 [34:22<?, ?it/s]", 2062),
        ("a first step may take minutes", "0%| | 0/1250 [14:22<?, ?it/s]", None),
        ("steps may be slow", "1%| | 2/1250 [31:02<52:20, 931s/it]\n1%| | 2/1250 [48:00<52:20, 931s/it]", None),
        ("it moved since", "1%| | 2/99 [00:02<01:20]\n1%| | 2/99 [31:02<01:20]\n3%| | 3/99 [31:03<01:20]", None),
        ("an outer bar waits for the inner one", "0%| | 0/3 [00:00<?]\n95%|#| 190/200 [31:02<01:20]\n0%| | 0/3 [33:10<?]", None),
        ("a bar that is done stands rightly", "100%|#| 3/3 [00:02<00:00]\n100%|#| 3/3 [59:02<00:00]", None),
        ("another bar came to its end after it", "0%| | 0/9 [34:22<?]\n100%|#| 3/3 [59:02<00:00]", None),
        ("no bar", "loss 1.2", None),
    ],
)
def test_a_bar_stands_where_its_time_goes_on_and_its_count_does_not(why: str, log: str, seconds: int | None) -> None:
    told = standing_bar(clean_lines(log))
    assert (told.text.endswith(f"for {seconds} seconds") if told else None) == (None if seconds is None else True), why
