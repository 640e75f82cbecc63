"""The ranks of a process group, as a kernel's args in a trace have them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from overlaptop.formats.chrome import Args

_RANKS = re.compile(r"\[(\d{1,7}(?:, ?\d{1,7})*)(, ?\.{3}, ?\d{1,7})?\]", re.ASCII)
MAX_MEMBERS = 1 << 20


def members_of(args: Args, world_size: int) -> Sequence[int]:
    """The ranks; empty where they are not known.

    torch cuts a long list to its first ranks, an ellipsis and its last one. It is completed where all ranks
    are equally far apart, as those of a device mesh are.
    """
    size = args.group_size if isinstance(args.group_size, int) else None
    written = args.group_ranks
    if isinstance(written, list):
        written = f"[{', '.join(map(str, written))}]"
    found = _RANKS.fullmatch(written) if isinstance(written, str) else None
    if found is None:
        # An empty list stands for all ranks.
        whole = size == world_size or (written == "[]" and size is None)
        return range(world_size) if whole else ()
    ranks = tuple(map(int, found[1].split(",")))
    if found[2] is None:
        return tuple(sorted(set(ranks)))
    if size is None or not len(ranks) < size <= MAX_MEMBERS or len(ranks) < 2 or ranks[1] <= ranks[0]:
        return ()
    stride = ranks[1] - ranks[0]
    complete = range(ranks[0], ranks[0] + size * stride, stride)
    last = int(found[2].rpartition(".")[2].strip(", "))
    return complete if tuple(complete[: len(ranks)]) == ranks and complete[-1] == last else ()
