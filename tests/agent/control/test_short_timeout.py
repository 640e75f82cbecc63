"""How long a rank may stand still for a change: never so long that torch ends the job for it."""

from __future__ import annotations

JOB = """
    import dataclasses, msgspec, sys, threading, time
    from collections import deque
    from datetime import timedelta

    import torch, torch.distributed as dist
    import torch.distributed.nn  # before there is a group: else it would hold it, with gloo's threads

    from overlaptop.agent.control import participant
    from overlaptop.agent.control.two_phase_commit import StepProgress
    from overlaptop.agent.control.executor import CommandExecutor
    from overlaptop.agent.hooks.process_groups import collectives_begun, shortest_timeout_s
    from overlaptop.agent.knobs.script_knobs import ScriptKnobs
    from overlaptop.wire import commands

    TIMEOUT_S = 16

    class Silent:
        def __init__(self, store):
            self.store, self.voted = store, False

        def __getattr__(self, name):
            def call(*args):
                if self.voted:
                    threading.Event().wait()
                answer = getattr(self.store, name)(*args)
                self.voted = name == "set" and args[0].startswith("armed")
                return answer
            return call

    dist.init_process_group("cpu:gloo,cuda:gloo", timeout=timedelta(minutes=9))
    assert shortest_timeout_s() == 540.0, shortest_timeout_s()
    dist.all_reduce(torch.zeros(1))
    assert len(collectives_begun(dist.group.WORLD)) == 1, "one backend for both devices"
    reducing = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    assert shortest_timeout_s() == TIMEOUT_S, shortest_timeout_s()
    rank = dist.get_rank()
    if rank == 1:  # its line to the store dies at the worst of moments
        job_store = participant.job_store
        participant.job_store = lambda key: Silent(job_store(key))
    knobs, step = ScriptKnobs(), 0
    depth = knobs.declare("depth", 1, choices=(1, 2))
    knobs.note_step(0)
    commands_here = CommandExecutor(
        rank, allowed=True, pace=lambda: StepProgress(step, 10_000_000),
        make_action=lambda command: knobs.action("depth", 2), notice=lambda *_: None, on_end=lambda: None,
        speaks_for_node=True,
    )
    said = {"changed"} if rank == 0 else {"unknown"}
    ready = torch.zeros(1)
    command = commands.make(commands.SET, {"value": 2}, knob="depth")
    commands_here.serve(deque([msgspec.structs.replace(command, id="20231114-221320-aaaaaa")]))
    give_up_s = time.monotonic() + 60
    while ready.item() < 2 and time.monotonic() < give_up_s:
        ready[0] = bool(commands_here.reports) and commands_here.reports[-1].state in said
        dist.all_reduce(ready, group=reducing)
        knobs.note_step(step + 1)
        step += 1
        if commands_here.armed is not None:
            commands_here.armed.on_boundary(step)
        time.sleep(0.01)
    newest = commands_here.reports[-1]
    print(newest.state, depth.value, newest.text, flush=True)
    if rank == 0:
        dist.destroy_process_group()
"""


def test_a_rank_that_cannot_learn_what_was_decided_does_not_end_a_job_whose_timeout_is_short(run_ranks):
    job = run_ranks(JOB, agent=False, listen=False, forked=True)
    assert job.codes == [0, 0], job.errs
    assert job.outs[0].startswith("changed 2 depth 1 → 2 at step ")
    assert job.outs[1] == "unknown 1 the job's store did not say within 4 s what was decided\n"
