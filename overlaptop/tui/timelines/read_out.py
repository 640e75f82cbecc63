"""The spans below the cursor in words: a line for each lane."""

import math
from dataclasses import replace

from overlaptop.fleet.records import BOUNDS
from overlaptop.text import Unit, bounded, byte_count, duration, percent, rate
from overlaptop.tui.draw.segments import Item, Segment, StyledLine, bold, dim, fit
from overlaptop.tui.model.lanes import Lanes
from overlaptop.tui.timeline.timeline import lane_label, op_name
from overlaptop.tui.timelines.aligned import AlignedStep, Cursor, under

_WIDE = 120
"""Narrower screens show a collective's cost on its own line."""


def read_out(
    step: AlignedStep, rank: int, cursor: Cursor, width: int, rows: int, *, exact: bool
) -> list[StyledLine]:
    """Return exactly ``rows`` lines about the spans below the cursor on that rank. ``exact``: its source
    sees the gaps between kernels.
    """
    unit = _unit(step.length_ns, cursor.right_ns - cursor.left_ns)
    at = bold(f"{unit.text(cursor.at_ns)} {unit.name}")
    lines: list[StyledLine] = [(bold(f" rank {rank}"), dim("  at "), at)]
    found = under(step, rank, cursor)
    if not found:
        detail, offset_ns = step.details[rank], step.offset_ns(rank)
        why = "nothing of its step is known here"
        if cursor.right_ns <= offset_ns:
            why = f"its step begins at {unit.text(offset_ns)} {unit.name}"
        elif cursor.left_ns >= offset_ns + detail.step_ns:
            why = f"its step ended at {unit.text(offset_ns + detail.step_ns)} {unit.name}"
        lines.append((dim(f" {why}"),))
    for each in found:
        bounds = f"{unit.text(each.start_ns)} – {unit.text(each.end_ns)} {unit.name}"
        items = [Item((lane_label(each.lane), Segment(bounds)))]
        items.append(Item((dim(duration(each.end_ns - each.start_ns)),), 5))
        if each.call is None:
            lines.append(fit(items, [], width, "  "))
            continue
        call = step.details[rank].collectives[each.call]
        items.append(Item((bold(op_name(call)), dim(f" {byte_count(call.bytes)}"))))
        cost = _cost(step.lanes(rank), each.call, exact=exact)
        if width >= _WIDE:
            lines.append(fit([*items, *cost], [], width, "  "))
        else:
            cost[0] = cost[0]._replace(line=(lane_label(""), *cost[0].line))
            lines += [fit(items, [], width, "  "), fit(cost, [], width, "  ")]
    if len(lines) > rows:
        lines[rows - 1 :] = [(dim("  … and more under the cursor"),)]
    return [*lines, *[()] * (rows - len(lines))]


def _unit(longest_ns: int, cell_ns: float) -> Unit:
    """Return a unit with enough digits to distinguish neighbouring cells."""
    unit = Unit.for_scale(longest_ns)
    digits = math.ceil(math.log10(unit.size_ns / max(1.0, cell_ns)))
    return replace(unit, decimals=max(unit.decimals, digits))


def _cost(lanes: Lanes, index: int, *, exact: bool) -> list[Item]:
    matched, rank = lanes.matched[index], lanes.detail.rank
    items = []
    wait_ns = matched.wait_ns(rank) if matched is not None else None
    if matched is not None and wait_ns is not None:
        words = f"waiting {duration(wait_ns)}, transfer {duration(matched.transfer_ns(rank))}"
        items.append(Item((Segment(words),)))
        if matched.late_rank is not None:
            items.append(Item((dim("late rank "), bold(str(matched.late_rank))), 2))
        if matched.bus_bandwidth is not None:
            items.append(Item((Segment(rate(matched.bus_bandwidth)),), 4))
    else:
        why = matched.not_attributed if matched is not None else ""
        items.append(Item((dim(f"not attributed{': ' * bool(why)}{why}"),)))
    hidden = bounded(percent(lanes.hidden_share(index)), BOUNDS["hidden_ns"], exact=exact)
    items.append(Item((dim("hidden "), Segment(hidden)), 3))
    return items
