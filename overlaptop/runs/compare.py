"""Compares the figures of two runs. Pure.

The blocks of the two runs are paired in order. Each pair is a trial of B against A (trials/effect.py): if
the runs are alike, its difference is as likely negative as positive. All figures share one error of 5 %: of
dozens of figures, two would always seem to differ.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from statistics import median
from typing import TypeAlias

from overlaptop import text
from overlaptop.records import DifferenceRecord, Figure, Work
from overlaptop.trials.effect import SAME, Pair, difference

WORTH_SHARE = 0.002
"""Smallest useful difference of any time, as a share of the step: 0.16 ms of 80 ms. A short operation
differs by more than SAME with every change of the machine's load."""


def unlike(a: Work, b: Work) -> str:
    """Return how two runs' work differs. Empty if nothing that is known of both does, except the sizes of
    buckets.
    """
    if a.world_size != b.world_size:
        return f"A has {text.plural(a.world_size, 'rank')}, B has {b.world_size}"
    if a.operations and b.operations:
        return _unlike_operations(a.operations, b.operations)
    bytes_a, bytes_b = a.comm_bytes, b.comm_bytes
    if bytes_a is not None and bytes_b is not None and abs(bytes_a - bytes_b) > SAME * bytes_a:
        return f"A moves {text.byte_count(bytes_a)} a step, B {text.byte_count(bytes_b)}"
    return ""


def bucket_sizes_differ(a: Work, b: Work) -> bool:
    """Return whether steps, of one run or of both, move the same bytes in collectives of other sizes."""
    sizes: defaultdict[_Moved, set[tuple[str, ...]]] = defaultdict(set)
    for order in (*(a.operations or ()), *(b.operations or ())):
        sizes[_moved(order)].add(tuple(order))
    return any(len(each) > 1 for each in sizes.values())


_Moved: TypeAlias = tuple[tuple[str, str, int], ...]
"""What a step moves, in order: an operation with its group, ``byte`` or ``call``, and how many of them."""


def _moved(order: Sequence[str]) -> _Moved:
    """Return a step's operations, equal ones in a row as one. Without known bytes, calls are counted."""
    moved: list[tuple[str, str, int]] = []
    for each in order:
        call, _, size = each.rpartition(" ")
        unit, count = ("byte", int(size)) if size.isdecimal() and int(size) else ("call", 1)
        if moved and moved[-1][:2] == (call, unit):
            count += moved.pop()[2]
        moved.append((call, unit, count))
    return tuple(moved)


def _unlike_operations(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]]) -> str:
    all_a, all_b = list(map(_moved, a)), list(map(_moved, b))
    if any(moved in all_b for moved in all_a):
        return ""  # in other steps, either may log or save something
    pairs = zip_longest(all_a[0], all_b[0])
    in_a, in_b = next(
        ("nothing" if each is None else _text(*each) for each in pair)
        for pair in pairs
        if pair[0] != pair[1]
    )
    return f"the first difference of a step is {in_a} in A, {in_b} in B"


def _text(call: str, unit: str, count: int) -> str:
    group, _, op = call.rpartition(": ")
    return f"{op.strip('_')} of {group or 'all groups'} ({text.plural(count, unit)})"


def differences(a: Sequence[Figure], b: Sequence[Figure]) -> list[DifferenceRecord]:
    """Return the differences of the figures that both runs have, in A's order."""
    others = {figure.name: figure for figure in b}
    both = [(figure, others[figure.name]) for figure in a if figure.name in others]
    step_ns = next((figure.median for figure in a if figure.name == "step"), 0.0)
    return [_difference(before, after, len(both), step_ns) for before, after in both]


def _difference(a: Figure, b: Figure, tests: int, step_ns: float) -> DifferenceRecord:
    number = min(len(a.blocks), len(b.blocks))
    pairs = [
        Pair(tried, present)
        for present, tried in zip(_merged(a.blocks, number), _merged(b.blocks, number), strict=True)
    ]
    effect = difference(pairs, tests)
    centre = low = high = None
    judged = effect is not None and effect.bounded
    scale, least = (1.0, 0.0) if a.unit == "share" else (a.median, WORTH_SHARE * step_ns)
    if effect is not None and scale:
        # No figure is negative, so none falls by more than all of it.
        centre = max(-1.0, effect.centre / scale)
        if judged:
            low, high = max(-1.0, effect.low / scale), effect.high / scale
    return DifferenceRecord(
        name=a.name,
        unit=a.unit,
        a=a.median,
        a_spread=a.spread,
        b=b.median,
        b_spread=b.spread,
        difference=centre,
        difference_low=low,
        difference_high=high,
        judged=judged,
        differs=effect is not None
        and abs(effect.centre) >= SAME * scale
        and (effect.low > least or effect.high < -least),
    )


def _merged(blocks: Sequence[float], number: int) -> list[float]:
    """Return as many blocks as the other run has: 28 become 14 or 7."""
    if not number:
        return []
    size = len(blocks) // number
    return [median(blocks[at * size : (at + 1) * size]) for at in range(number)]
