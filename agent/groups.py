"""The members of process groups, as torch knows them."""

from __future__ import annotations

from collections.abc import Collection

from overlaptop.wire.bounds import MAX_RANKS


def members_of(titles: Collection[str], most: int = MAX_RANKS) -> dict[str, tuple[int, ...]]:
    """The ranks of the groups of these titles, as torch knows them; without larger groups."""
    import torch.distributed as dist

    from overlaptop.timeline.collectives import group_title

    if not dist.is_available() or not titles:
        return {}
    world = dist.distributed_c10d._world  # noqa: SLF001 - there is no public way
    return {
        title: tuple(sorted(ranks))
        for group, ranks in tuple(world.pg_group_ranks.items())
        if hasattr(group, "group_name") and len(ranks) <= most  # a number: of other ranks only
        if (title := group_title(group.group_name, group.group_desc)) in titles
    }
