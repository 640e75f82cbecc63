"""Run a command behind a line that carries little and takes its time, as ssh over a slow network does.

    python slow_line.py BYTES_PER_S LATENCY_S COMMAND...

It holds all that does not fit yet, without bound: whoever sends too much is that much late.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque


def carry(reads: int, writes: int, bytes_per_s: float, latency_s: float) -> None:
    """Passes bytes on until they end, each as soon as the line is free, and a moment later."""
    held: deque[tuple[float, bytes]] = deque()
    came = threading.Condition()

    def deliver() -> None:
        while True:
            with came:
                came.wait_for(lambda: held)
                due_s, data = held.popleft()
            time.sleep(max(0.0, due_s - time.monotonic()))
            if not data:
                os.close(writes)
                return
            while data:
                data = data[os.write(writes, data) :]

    threading.Thread(target=deliver).start()
    free_s = 0.0
    while True:
        data = os.read(reads, 1 << 10)
        free_s = max(free_s, time.monotonic()) + len(data) / bytes_per_s
        with came:
            held.append((free_s + latency_s, data))
            came.notify()
        if not data:
            return


if __name__ == "__main__":
    rate, latency = float(sys.argv[1]), float(sys.argv[2])
    child = subprocess.Popen(sys.argv[3:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    threading.Thread(target=carry, args=(0, child.stdin.fileno(), rate, latency), daemon=True).start()
    carry(child.stdout.fileno(), 1, rate, latency)
