"""A DDP job in simulated time, seen as a dashboard sees it: its timelines follow from buckets.predict."""

from dataclasses import replace

import numpy as np

from overlaptop.models.alpha_beta import AlphaBeta
from overlaptop.models.buckets import MIB, Compute, GradientList, predict
from overlaptop.wire import commands
from overlaptop.wire.commands import CommandReport
from overlaptop.wire.knobs import GradientFacts, Knob, KnobFacts
from overlaptop.wire.messages import CollectiveSpan, PhaseSpan, StepDetail
from tests.fleet.builders import BUCKET_CAP_MB, MS, T0, Clock, info, step, welcome
from tests.fleet.hub import PlayedFleet

GROUP = "0 default_pg"
SIZES = [2 * MIB] * 30 + [12 * MIB]
"""The last gradient, an embedding's, is the largest."""
READY = np.concatenate([np.linspace(0.05, 0.6, 20), np.linspace(0.7, 0.95, 11)])
"""As shares of backward: faster at first."""
LINK = AlphaBeta(400_000.0, 2e9)
COMPUTE = Compute(backward_ns=40 * MS, forward_ns=20 * MS, optimizer_ns=5 * MS)


class DdpJob:
    def __init__(
        self, *, source="kernels", ranks=2, noise=0.01, slowdown=0.0, late_ns=0, first_cap=None, cap=25
    ):
        """Rank 0 is ready `late_ns` after the others for each bucket, which start and wait for it."""
        self.fleet = PlayedFleet(Clock())
        self.source, self.ranks, self.noise = source, ranks, noise
        self.slowdown, self.late_ns, self.first_cap = slowdown, late_ns, first_cap
        self.random = np.random.default_rng(5)
        self.at = 0
        self.cap = cap
        self.other = 1
        self.fleet.apply(welcome(world_size=ranks))
        for rank in range(ranks):
            self.fleet.apply(info(rank, source=source, control_allowed=True))
            self.fleet.apply(GradientFacts(rank, tuple(SIZES), ranks, GROUP, first_cap))
        self.tell_knobs()

    def tell_knobs(self, ranks=None):
        bucket = replace(BUCKET_CAP_MB, value=self.cap, value_text=str(self.cap))
        other = Knob("accumulation", self.other, str(self.other), "1", 1, 8)
        for rank in range(self.ranks) if ranks is None else ranks:
            self.fleet.apply(KnobFacts(rank, (bucket, other)))

    def true(self, cap):
        """The step with this bucket size, without noise."""
        backward_ns, first_cap = COMPUTE.backward_ns, self.first_cap if cap == 25 else None
        for _ in range(50):
            gradients = GradientList(np.array(SIZES), np.rint(READY * backward_ns).astype(np.int64))
            compute = replace(COMPUTE, backward_ns=backward_ns)
            found = predict(gradients, compute, LINK, cap * MIB, first_cap)
            backward_ns = round(COMPUTE.backward_ns + self.slowdown * found.hidden_ns)
        return found

    def change(self, cap):
        self.answer(self.ask(cap), "changed", self.at, str(self.cap), str(cap))
        self.cap = cap
        self.tell_knobs()

    def ask(self, cap):
        command = commands.make_setting(BUCKET_CAP_MB, cap)
        self.fleet.apply(command)
        return command

    def answer(self, command, state, at, was="", becomes=""):
        """What all ranks say of a command, which takes place at that step."""
        for rank in range(self.ranks):
            self.fleet.apply(CommandReport(rank, command.id, "set", T0, state, at, "", was, becomes))

    def run(self, steps, *, collector, ranks=None, **changes):
        """Steps one by one, each with a snapshot for `collector`."""
        true = self.true(self.cap)
        for _ in range(steps):
            factor = 1 + self.noise * self.random.normal()
            for rank in range(self.ranks) if ranks is None else ranks:
                detail = replace(self.detail(rank, true, factor), **changes)
                self.fleet.apply(replace(step(rank, self.at), step_ns=detail.step_ns))
                self.fleet.apply(detail)
            collector.add(self.fleet.snapshot())
            self.at += 1

    def detail(self, rank, true, factor):
        def ns(time_ns):
            return round(factor * time_ns)

        forward_ns = true.compute.forward_ns
        early_ns = self.late_ns if rank else 0
        begins = true.buckets.ready_ns if self.source == "host" else true.start_ns
        op = "all_reduce" if self.source == "kernels" else "allreduce_"
        starts = np.maximum(begins - early_ns, 0)
        if self.source != "host":  # on a stream they do not overlap
            starts = np.maximum(starts, np.concatenate([[0], true.end_ns[:-1]]))
        last_ns = max(true.compute.backward_ns, int(true.end_ns[-1]))
        stall = (ns(forward_ns + true.compute.backward_ns), ns(forward_ns + last_ns))
        return StepDetail(
            rank=rank, step=self.at, start_ns=T0, step_ns=ns(true.step_ns),
            phases=(
                PhaseSpan("forward", 0, ns(forward_ns)),
                PhaseSpan("backward", ns(forward_ns), ns(forward_ns + last_ns)),
                PhaseSpan("optimizer", ns(forward_ns + last_ns), ns(true.step_ns)),
            ),
            compute_spans_ns=(), comm_spans_ns=(), copy_spans_ns=(),
            stall_spans_ns=stall if stall[1] > stall[0] else (),
            collectives=(
                CollectiveSpan("broadcast_", 4096, GROUP, True, 0, 1000),
                *(
                    CollectiveSpan(
                        op, size, GROUP, True, ns(forward_ns + begin), ns(forward_ns + end)
                    )
                    for size, begin, end in zip(
                        true.buckets.size_bytes.tolist(), starts.tolist(), true.end_ns.tolist(), strict=True
                    )
                ),
            ),
        )  # fmt: skip
