"""The links' traffic beside the traffic of the job's own collectives."""

from collections.abc import Sequence

from overlaptop.fleet.traffic import Traffic
from overlaptop.text import rate, whole_percent
from overlaptop.tui.draw.layout import paragraph, titled
from overlaptop.tui.draw.segments import (
    BOLD,
    BOLD_WARNING,
    DIM,
    TEXT,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    dim,
)

NOTABLE_SHARE = 0.1
"""Smallest notable difference: counters and collectives are not read at the same moments."""
_NAMES = {"nvlink": "NVLink", "pcie": "PCIe", "nic": "NIC"}
_LABEL, _FIGURE = 23, 12
_WARNING = TextStyle("warning")


def traffic_lines(traffic: Traffic | None, width: int) -> list[StyledLine]:
    """Return a verdict; measured, explained, the rest; and its meaning.

    The verdict is in the heading; on small screens the rest is scrolled.
    """
    if traffic is None:
        text = "unknown: link traffic was not measured"
        return [titled("account"), *paragraph(text, width, indent=3)]
    label = min(_LABEL, max(12, width - 2 * _FIGURE - 4))
    measured = (traffic.rx_bytes_per_s, traffic.tx_bytes_per_s)
    own = (traffic.collectives_rx_bytes_per_s, traffic.collectives_tx_bytes_per_s)
    pairs = list(zip(measured, own, strict=True))
    rest = [None if m is None or o is None else m - o for m, o in pairs]
    verdict, meaning = _verdict(traffic, pairs, width)
    over = f"{_NAMES.get(traffic.over, traffic.over)}, over {traffic.window_s:.0f} s  "
    return [
        titled("account", dim(over), verdict),
        (dim(" " * (label + 3)), dim(f"{'rx':>{_FIGURE}}{'tx':>{_FIGURE}}")),
        _row("measured", label, measured, TEXT),
        _row("the job's collectives" if label >= _LABEL else "collectives", label, own, TEXT),
        _row("unexplained", label, rest, BOLD),
        *meaning,
        *paragraph(traffic.reason, width, indent=3),
    ]


def _row(name: str, label: int, figures: Sequence[int | None], style: TextStyle) -> StyledLine:
    words = ["unknown" if each is None else rate(each) if each >= 0 else "none" for each in figures]
    cells = zip(words, figures, strict=True)
    return (
        dim(f"   {name:<{label}}"),
        *(Segment(f"{word:>{_FIGURE}}", style if each else DIM) for word, each in cells),
    )


def _verdict(
    traffic: Traffic, pairs: list[tuple[int | None, int | None]], width: int
) -> tuple[Segment, list[StyledLine]]:
    """Return the verdict in a word or two, and its reason. ``pairs``: rx and tx, measured and explained."""
    known = [
        (measured, explained, direction)
        for (measured, explained), direction in zip(pairs, ("rx", "tx"), strict=True)
        if measured is not None and explained is not None
    ]
    if not known:
        return dim("unknown"), []
    measured, explained, direction = max(known, key=lambda each: abs(each[0] - each[1]))
    if not measured and not explained:
        return dim("the links are quiet"), []
    share = 1 - explained / measured if measured else -1.0
    if share < -NOTABLE_SHARE:
        text = "the collectives account for more than the counters saw"
        if traffic.over == "nic":  # NCCL chooses adapters, and an algorithm, by itself
            return bold("less than the collectives"), paragraph(f"{text}: other NICs", width, indent=3)
        shown = paragraph(text, width, _WARNING, indent=3)
        return Segment("! does not add up", BOLD_WARNING), shown
    share = max(0.0, share)
    if share <= NOTABLE_SHARE:
        return Segment("✓ explained", TextStyle("good", bold=True)), []
    text = f"{whole_percent(share)} of {direction} unexplained"
    # A job's batches arrive over PCIe or the network, which needs no warning.
    is_usual = traffic.over != "nvlink"
    verdict = bold(text) if is_usual else Segment(f"! {text}", BOLD_WARNING)
    meaning = "other processes' traffic, or the job's copies"
    if traffic.over == "nic":
        meaning = "other processes' traffic, the job's data, or packets' headers"
    return verdict, paragraph(meaning, width, TEXT if is_usual else _WARNING, indent=3)
