"""A dashboard without a screen that watches hosts and writes down what it sees."""

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Self

from overlaptop.fleet.hosts_session import HostsSession
from overlaptop.fleet.snapshot import NodeView, Snapshot
from overlaptop.remote import targets
from overlaptop.remote.pool import ConnectionPool
from overlaptop.wire.messages import StepTotals

PATIENCE_S = 90.0
_TICK_S = 0.05


class Watching:
    """The session on these hosts. Nothing is asked on a terminal."""

    def __init__(self, *words: str, **options: Any) -> None:
        self.reported: list[str] = []
        self.pool = ConnectionPool(targets.named(words), self.reported.append, **options)
        self.host = self.pool.hosts[0]
        self.session = HostsSession(self.pool)
        self.seen: defaultdict[int, list[StepTotals]] = defaultdict(list)
        self.snapshot = self.session.tick()

    def connect(self) -> Self:
        """Tries each connection once, as before the screen opens."""
        self.pool.connect(interactive=False)
        return self

    def tick(self) -> Snapshot:
        self.snapshot = self.session.tick()
        for step in self.snapshot.fresh:
            self.seen[step.rank].append(step)
        return self.snapshot

    def until(self, probe: Callable[[Snapshot], object], patience_s: float = PATIENCE_S) -> Snapshot:
        """Looks until the probe holds; the snapshot in which it does."""
        deadline_s = time.monotonic() + patience_s
        while not probe(self.tick()):
            assert time.monotonic() < deadline_s, f"gave up waiting for {probe}: {self.snapshot.nodes}"
            self.session.pause(_TICK_S)
        return self.snapshot

    def until_all_step(self, ranks: int, steps: int = 3) -> Snapshot:
        """Until so many ranks are known, each has made so many more steps, and no connection is down."""
        self.tick()
        before = {rank: len(steps) for rank, steps in self.seen.items()}

        def done(snapshot: Snapshot) -> bool:
            return len(snapshot.ranks) == ranks and all(
                not view.node_lost and len(self.seen[view.rank]) >= before.get(view.rank, 0) + steps
                for view in snapshot.ranks
            )

        return self.until(done)

    def of(self, rank: int) -> list[int]:
        return [step.step for step in self.seen[rank]]

    def node(self, name: str) -> NodeView:
        return next(node for node in self.snapshot.nodes if node.name == name)

    def close(self) -> None:
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def overlaptop(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "overlaptop", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
