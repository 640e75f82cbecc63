"""What telemetry costs a job: its step time, what it keeps the interpreter from it, and its own CPU time.

    torchrun --nproc-per-node=2 -m overlaptop.agent [--phases-only] benchmarks/telemetry.py step \
        [--rounds 24] [--block 60] [--settle 10] workloads/ddp.py [args]
    python benchmarks/telemetry.py gil [--rounds 6] [--seconds 10]

``step``: in each round of one job one block of steps has telemetry and one has not, in an order that turns;
the ratio is that of the two blocks of a round. A block's first steps do not count. ``--phases-only`` leaves
the agent's other parts as quiet as can be.

``gil``, first: how long the thread runs Python while nobody else does, its calls into NVML left out.
What it reads of /proc and /sys counts, though the interpreter is free meanwhile, so it is held no
longer than that. Then: a loop of pure Python, which alone wants the interpreter, adds up the leaps of
its own clock by more than 30 us in which it waited for the interpreter; a loop that the machine put
aside did not wait of its own accord, and such leaps do not count. Watches the first GPU that NVML
shows; where there is none, as on a machine without GPUs, only where the process runs.

With telemetry off its thread stands still at its next wait, and its first look at the machine is over.
"""

from __future__ import annotations

import argparse
import statistics
import threading
from collections.abc import Callable
from resource import RUSAGE_THREAD, getrusage
from time import perf_counter_ns, sleep
from typing import Any

from blocks import Blocks, add_options, thread_cpu_s
from pairs import in_turn, interval, ratios

import overlaptop.agent
from overlaptop.agent import placement
from overlaptop.agent.isolation.threads import Thread
from overlaptop.agent.reporting.sender import Sender
from overlaptop.agent.telemetry import telemetry
from overlaptop.agent.telemetry.machine_monitor import JobGpu, MachineMonitor
from overlaptop.agent.telemetry.nvml import Nvml, NvmlError, import_library
from overlaptop.agent.telemetry.telemetry import Telemetry
from overlaptop.wire.schema import Message

LEAP_NS = 30_000
SETTLE_S = 1.0


class Gate:
    """Lets telemetry's thread go on, or stand still at its next wait."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._until_next_s = telemetry.until_next_s
        telemetry.until_next_s = self._wait

    def set(self, on: bool) -> None:
        """Open or close it."""
        (self._open.set if on else self._open.clear)()

    def _wait(self, now_s: float) -> float:
        self._open.wait()
        return self._until_next_s(now_s)


class StepToggler(Blocks):
    """Blocks of steps with telemetry and without."""

    def __init__(self, rounds: int, block: int, settle: int) -> None:
        super().__init__(["with", "without"], rounds, block, settle)
        self._gate = Gate()

    def thread(self) -> Thread | None:
        """Telemetry's."""
        agent = overlaptop.agent._agent
        return agent._telemetry._thread if agent is not None else None

    def begin(self, way: str) -> None:
        """Let telemetry go on, or have it stand still."""
        if self.thread() is None:
            raise SystemExit("telemetry does not run here: start this under python -m overlaptop.agent")
        self._gate.set(on=way == "with")

    def report(self) -> None:
        """What it costs."""
        with_it, without = self.step_ms["with"], self.step_ms["without"]
        found = ratios(with_it, without)
        low, high = interval(found)
        print(
            f"step: {statistics.median(without):.3f} ms without telemetry, "
            f"{statistics.median(with_it):.3f} ms with\n"
            f"ratio, median of {len(found)} pairs: {statistics.median(found):.5f}, "
            f"95 % interval {low:.5f} .. {high:.5f}, range {min(found):.5f} .. {max(found):.5f}\n"
            f"CPU of its thread: {1e3 * statistics.median(self.cpu['with']):.3f} ms per second",
            flush=True,
        )


class Held:
    """Adds up the time that telemetry's thread spends in looks at the machine, less its calls into NVML."""

    def __init__(self) -> None:
        self.ns = 0
        self._inside = threading.local()
        for name in ("sample", "numa", "device"):
            setattr(MachineMonitor, name, self._timed(getattr(MachineMonitor, name), 1))
        Nvml.call = self._timed(Nvml.call, -1)  # type: ignore[method-assign]

    def _timed(self, call: Callable[..., Any], sign: int) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            looking = getattr(self._inside, "looking", False)
            self._inside.looking = True
            began = perf_counter_ns()
            try:
                return call(*arguments)
            finally:
                if looking or sign > 0:  # NVML's calls count off only from a look
                    self.ns += sign * (perf_counter_ns() - began)
                self._inside.looking = looking

        return timed


class Silent(Sender):
    """A line that is always there and leads nowhere."""

    def __init__(self) -> None:
        super().__init__(placement.alone(), "telemetry.py")
        self.connections = 1
        self.messages = 0

    def put(self, message: Message) -> None:
        """Count it."""
        del message
        self.messages += 1

    put_state = put


def waited_ms(seconds: float) -> float:
    """How long a loop that does nothing else waited for the interpreter, by leaps of LEAP_NS or more."""
    clock = perf_counter_ns
    waits = getrusage(RUSAGE_THREAD).ru_nvcsw
    waited_ns = 0
    last = clock()
    end = last + int(seconds * 1e9)
    while last < end:
        now = clock()
        if now - last > LEAP_NS:
            before, waits = waits, getrusage(RUSAGE_THREAD).ru_nvcsw
            if waits > before:
                waited_ns += now - last
            now = clock()
        last = now
    return waited_ns / 1e6


def first_gpu() -> JobGpu | None:
    """The first GPU of NVML's; None, with a line that says why: there is none."""
    try:
        import_library()
        nvml = Nvml.open()
        sites = nvml.gpus()
        nvml.close()
    except NvmlError as reason:
        print(f"no GPU is watched: {reason}")
        return None
    return JobGpu(sites[0].uuid, sites[0].pci_bus_id, sites[0].name) if sites else None


def measure_gil(rounds: int, seconds: float) -> None:
    """Interleave blocks with telemetry and without, and print what each cost the loop."""
    gpu = first_gpu()
    gate = Gate()
    held = Held()
    watched = Telemetry(lambda level, text: print(level, text), enabled=True)
    watched.follow(lambda: gpu)
    line = Silent()
    while line.messages < 3:  # the first look at the machine
        watched.serve(line, placement.alone())
        sleep(0.1)
    held.ns = 0
    sleep(2 * seconds)
    print(f"its thread held the interpreter {held.ns / 1e6 / (2 * seconds):.3f} ms per second at most")
    lost: dict[bool, list[float]] = {False: [], True: []}
    cpu: list[float] = []
    for order in in_turn((True, False), rounds):
        for on in order:
            gate.set(on)
            sleep(SETTLE_S)
            before_s = thread_cpu_s(watched._thread)
            lost[on].append(waited_ms(seconds) / seconds)
            if on:
                cpu.append(1e3 * (thread_cpu_s(watched._thread) - before_s) / seconds)
    gate.set(on=True)
    watched.stop()
    extra = [on - off for on, off in zip(lost[True], lost[False], strict=True)]
    low, high = interval(extra)
    print(
        f"the loop waited {statistics.median(lost[True]):.3f} ms per second with telemetry, "
        f"{statistics.median(lost[False]):.3f} without\ndifference, median of {rounds} pairs: "
        f"{statistics.median(extra):.3f}, 95 % interval {low:.3f} .. {high:.3f}\n"
        f"CPU of its thread: {statistics.median(cpu):.3f} ms per second"
    )


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser()
    kinds = parser.add_subparsers(dest="kind", required=True)
    add_options(kinds.add_parser("step"), rounds=24, block=60, settle=10)
    gil = kinds.add_parser("gil")
    gil.add_argument("--rounds", type=int, default=6)
    gil.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    if options.kind == "gil":
        measure_gil(options.rounds, options.seconds)
        return
    StepToggler(options.rounds, options.block, options.settle).run(options.script, options.words)


if __name__ == "__main__":
    main()
