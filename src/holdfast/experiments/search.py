"""Find the smallest sets of samples that make a step fail. Pure search: what a set does is asked of a function that runs a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations

Fails = Callable[[Sequence[int]], bool]
_TRIPLES = 48  # samples of which sets of three are looked through
_PAIRS = 512  # and of two; of more samples as many, from the shortest to the longest: all pairs of a large step would fill the memory


def smallest_failing(samples: Sequence[int], fails: Fails) -> list[int]:
    """Find a set that fails and of which no part that was tried does; log2(n) + 1 trials where one sample is to blame.

    First by halves, as if one sample were guilty alone; where that leads to a sample which is innocent alone, by ddmin (A. Zeller,
    R. Hildebrandt, IEEE TSE 28(2), 2002).
    """
    suspects = list(samples)
    while len(suspects) > 1:
        half = suspects[: len(suspects) // 2]
        suspects = half if fails(half) else suspects[len(half) :]
    return suspects if fails(suspects) else _ddmin(list(samples), fails)


def _ddmin(samples: list[int], fails: Fails) -> list[int]:
    parts = 2
    while len(samples) > 1:
        size = -(-len(samples) // parts)
        chunks = [samples[at : at + size] for at in range(0, len(samples), size)]
        rests = [[sample for sample in samples if sample not in chunk] for chunk in chunks] if parts > 2 else []
        smaller = next((chunk for chunk in chunks if fails(chunk)), None)
        fewer = None if smaller else next((rest for rest in rests if fails(rest)), None)
        if smaller:
            samples, parts = smaller, 2
        elif fewer:
            samples, parts = fewer, max(parts - 1, 2)
        elif parts >= len(samples):
            break
        else:
            parts = min(len(samples), 2 * parts)
    return samples


def same_size_sets(suspects: Sequence[int], others: Sequence[int], lengths: Mapping[int, int]) -> list[list[int]]:
    """Choose up to two sets of `others` with about as many tokens as the suspects: the nearest total, and the nearest no smaller one."""
    wanted = sum(lengths[one] for one in suspects)
    if len(others) > _PAIRS:
        by_length = sorted(others, key=lambda one: lengths[one])
        others = [by_length[at * (len(others) - 1) // (_PAIRS - 1)] for at in range(_PAIRS)]
    sizes = (1, 2, 3) if len(others) <= _TRIPLES else (1, 2)
    sums = [(sum(lengths[one] for one in some) - wanted, list(some)) for some in chain(*(combinations(others, size) for size in sizes))]
    nearest = min(sums, key=lambda entry: abs(entry[0]), default=None)
    above = min((entry for entry in sums if entry[0] >= 0), key=lambda entry: entry[0], default=None)
    found = [entry[1] for entry in (nearest, above) if entry is not None]
    return found[:1] if len(found) == 2 and found[0] == found[1] else found


def swapped_by_length(suspects: Sequence[int], others: Sequence[int], lengths: Mapping[int, int]) -> list[list[int]] | None:
    """Return the suspects with others of about as many tokens in the place of each; None where none are as long as one of them."""
    found: list[list[int]] = []
    for gone in suspects:
        sets = same_size_sets([gone], others, lengths)
        if not any(sum(lengths[one] for one in some) >= lengths[gone] for some in sets):
            return None
        found += [[one for one in suspects if one != gone] + some for some in sets]
    return found


def guilty(
    suspects: Sequence[int],
    others: Sequence[int],
    fails: Fails,
    alike: Sequence[Sequence[int]] = (),
    as_long: Sequence[Sequence[int]] | None = (),
) -> tuple[list[int], str]:
    """Find the suspects that fail whatever company they are in; nobody where the failure goes with the company, that is with the shape.

    `suspects` fail together, `others` do not; they come by length. The shortest and the longest are tried as companions, so that sums of
    tokens differ, and the longest in the place of a suspect, so that a sum is told from a row; so are sets `alike`, which have as many
    tokens as the suspects, and `as_long`, where others of its length are in the place of one of several; None: nothing is as long.
    Returns the guilty samples, in the order given, and what was seen, in words.
    """
    company = list(others[:1]) + list(others[-1:] if len(others) > 1 else [])
    if not company:
        return [], "there is no other sample to tell a row from a shape"

    def whatever_company(some: Sequence[int]) -> bool:
        return all(fails([*some, other]) for other in company)

    if any(fails(some) for some in alike):
        return [], "as many tokens of other samples fail, too"
    if len(suspects) == 1:
        alone = whatever_company(suspects)
        seen = "it fails alone and in other company" if alone else "it fails alone, but not in other company"
        return (list(suspects) if alone else []), seen
    if len(others) >= len(suspects) and fails(others[-len(suspects) :]):
        return [], f"{len(suspects)} samples fail together, but as many others do, too"
    single = [one for one in suspects if whatever_company([one])] if len(suspects) == 2 else []
    if single:
        return single, "it fails with any other sample"
    swapped = [[one for one in suspects if one != gone] + company[-1:] for gone in (suspects[0], suspects[-1])]
    if any(fails(some) for some in (*swapped, *(as_long or ()))):
        return [], f"{len(suspects)} samples fail together, but with another in the place of one of them, too"
    if as_long is None:
        return [], f"{len(suspects)} samples fail together, and no others are as long as one of them: it may be their length"
    if whatever_company(suspects):
        return list(suspects), f"these {len(suspects)} fail together, in other company too, and not one by one"
    return [], f"{len(suspects)} samples fail together, but not in other company"
