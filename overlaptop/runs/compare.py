"""Compares the figures of two runs. Pure.

The blocks of the two runs are paired in order. Each pair is a trial of B against A (trials/effect.py): if
the runs are alike, its difference is as likely negative as positive. All figures share one error of 5 %: of
dozens of figures, two would always seem to differ.
"""

from collections.abc import Sequence
from statistics import median

from overlaptop import text
from overlaptop.records import DifferenceRecord, Figure, Work
from overlaptop.trials.effect import SAME, Pair, difference

WORTH_SHARE = 0.002
"""Smallest useful difference of any time, as a share of the step: 0.16 ms of 80 ms. A short operation
differs by more than SAME with every change of the machine's load."""


def unlike(a: Work, b: Work) -> str:
    """Return how two runs' work differs. Empty if nothing that is known of both does."""
    if a.world_size != b.world_size:
        return f"{a.world_size} and {text.plural(b.world_size, 'rank')}"
    orders_a, orders_b = a.operations or [], b.operations or []
    if any(order in orders_b for order in orders_a):
        return ""  # in other steps, either may log or save something
    bytes_a, bytes_b = a.comm_bytes, b.comm_bytes
    if bytes_a is not None and bytes_b is not None and abs(bytes_a - bytes_b) > SAME * bytes_a:
        return f"{text.byte_count(bytes_a)} and {text.byte_count(bytes_b)} a step"
    if not orders_a or not orders_b:
        return ""
    usual_a, usual_b = orders_a[0], orders_b[0]
    pairs = zip(usual_a, usual_b, strict=False)
    first = next((at for at, (of_a, of_b) in enumerate(pairs) if of_a != of_b), None)
    if first is None:
        return f"{len(usual_a)} and {text.plural(len(usual_b), 'collective')} a step"
    return f"collective {first + 1} of a step is {usual_a[first]} and {usual_b[first]}"


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
