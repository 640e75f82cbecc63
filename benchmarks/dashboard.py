"""What the dashboard costs: time to first paint, and share of a core at 4 redraws a second.

Runs the real app in a pseudo-terminal of its own, reading a synthetic job (8 ranks, 20 steps a second
each, every message passed through the wire's codec, as from a hub), and prints what it used.

    python benchmarks/dashboard.py [--ranks N] [--seconds S] [--size COLUMNSxROWS]
"""

from __future__ import annotations

import argparse
import time

import terminals
from synthetic import SyntheticSession


def show(ranks: int) -> None:
    """The app itself, in the child."""
    from overlaptop import tui

    # Making up the past of many ranks would take longer than the first paint, which is measured.
    tui.run(SyntheticSession(ranks, past_s=min(20.0, 1000 / ranks)))


def measure(ranks: int, seconds: float, columns: int, rows: int) -> tuple[float, float, int]:
    """Seconds to the first painted rank row, share of one core from then on, and bytes a second written."""
    started_s = time.monotonic()
    words = [__file__, "--child", "--ranks", str(ranks)]
    with terminals.on_terminal(words, columns, rows) as (pid, terminal):
        terminals.read_until(terminal, ["exposed", "workloads/ddp.py"], 30.0)
        painted_s = time.monotonic() - started_s
        terminals.read_for(terminal, 1.5)  # late imports belong to the start
        cpu_s, from_s = terminals.cpu_s(pid), time.monotonic()
        count = terminals.read_for(terminal, seconds)
        used = (terminals.cpu_s(pid) - cpu_s) / (time.monotonic() - from_s)
        return painted_s, used, round(count / seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--size", default="160x45")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        show(options.ranks)
        return
    columns, rows = (int(part) for part in options.size.split("x"))
    painted_s, used, byte_rate = measure(options.ranks, options.seconds, columns, rows)
    print(f"{options.ranks} ranks at 20 steps/s each, {options.size}, 4 redraws a second")
    print(f"first paint    {painted_s * 1000:.0f} ms after process start")
    session, before_s = SyntheticSession(options.ranks), time.process_time()
    session.watch(range(options.ranks))  # as the dashboard does, to split them
    session.make(400)
    making = (time.process_time() - before_s) / 400 * 20
    print(f"CPU            {(used - making) * 100:.1f} % of one core")
    print(f"               and {making * 100:.1f} % to make up the job, not counted above")
    print(f"terminal       {byte_rate / 1024:.1f} KiB/s")


if __name__ == "__main__":
    main()
