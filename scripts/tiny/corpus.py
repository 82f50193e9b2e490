"""The pretraining text of tiny: an endless, seeded stream of generated documents. No files, no network, no torch.

    python scripts/tiny/corpus.py 20          prints twenty documents

Early text is mostly copying (what makes attention useful at all); later text is mostly filling values into forms, with facts and talk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random

from skills import SKILLS

EARLY = {
    "repeated": 40,
    "by_example": 15,
    "by_manual": 10,
    "one_form": 15,
    "extracted": 6,
    "edited": 6,
    "table": 2,
    "fact": 3,
    "talk": 1,
    "choice_of_words": 2,
}
LATE = {
    "repeated": 6,
    "by_example": 40,
    "by_manual": 18,
    "one_form": 9,
    "extracted": 7,
    "edited": 7,
    "table": 2,
    "fact": 7,
    "talk": 2,
    "choice_of_words": 2,
}


def documents(seed: int, progress: float = 1.0) -> Iterator[str]:
    """Yield documents without end. progress 0 gives the early mixture, 1 the late one, between them a blend."""
    rng = Random(f"tiny {seed}")
    late = min(1.0, max(0.0, progress))
    names = list(SKILLS)
    weights = [EARLY[skill] * (1 - late) + LATE[skill] * late for skill in names]
    while True:
        yield SKILLS[rng.choices(names, weights)[0]](rng)


def main() -> None:
    for _, document in zip(range(int(sys.argv[1]) if len(sys.argv) > 1 else 20), documents(0), strict=False):
        print(document, end="\n\n")


if __name__ == "__main__":
    main()
