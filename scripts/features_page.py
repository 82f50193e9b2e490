"""Write docs/reference/features.md: the table of the features of bars, from their functions."""

from __future__ import annotations

from pathlib import Path

from holdfast.tables.bars.features import ALL
from holdfast.tables.bars.features.volume_profile import ROLLING, VALUE_AREA

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "features.md"
HEAD = f"""# Features of minute bars

What `holdfast data bars` writes for each bar ([the command](commands/data.md#bars)). Made by `python
scripts/features_page.py` from the functions in `src/holdfast/tables/bars/features/`, one a feature.

A bar's features are known at its end: they use the bar itself, bars before it, and the VIX of days before its local day. O, H, L, C, V:
open, high, low, close, volume; t counts bars, not minutes. A window that does not lie wholly in the file gives no value (an empty field),
and neither does a ratio whose denominator is 0. A session is a trading day: it begins at `--session` local time, and one that begins at
noon or later has the date of the next day. After a change of contract prices are scaled by the ratio of the last close to the new open,
so that the change is no return.

The volume profile: a bar's volume counts at the bin of its typical price (H + L + C) / 3; bins are `--bin` wide and begin at 0. VPOC: the
middle of the bin with most volume, of the lowest of several. Value area: from the VPOC outwards, bin by bin to the side whose next bin
has more volume (upwards where both have as much, never to a side with no volume left), until {VALUE_AREA:.0%} of the volume is inside;
VAH and VAL are its edges. The rolling profile is of the {ROLLING:,} newest bars.

| feature | formula | unit | source |
|---|---|---|---|
"""


def page() -> str:
    rows = [f"| `{one.name}` | {one.formula.replace('|', chr(92) + '|')} | {one.unit} | {one.source} |\n" for one in ALL]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
