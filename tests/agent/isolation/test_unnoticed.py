"""What a script sees of its process is the same with the agent as without: signals, threads, children."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from overlaptop.wire.messages import RankEnd

# The agent's threads are there before the script blocks the signal. Its last word: the number of threads in
# which it is not blocked.
BLOCKS_A_SIGNAL = """
    import contextlib, os, signal, sys, threading, time
    import torch, torch.distributed as dist

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    came = 0

    def wait_for_signals():
        global came
        while came < 200:
            signal.sigwait({signal.SIGUSR1})
            came += 1

    waiter = threading.Thread(target=wait_for_signals)
    waiter.start()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for sent in range(1, 201):
        os.kill(os.getpid(), signal.SIGUSR1)
        weight.sum().backward()
        dist.all_reduce(weight.grad)
        optimizer.step()
        while came < sent:
            time.sleep(0.001)
    waiter.join()
    time.sleep(0.5)  # telemetry has begun by then
    free = 0
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/status") as status:
            [blocked] = [int(line.split()[1], 16) for line in status if line.startswith("SigBlk")]
            free += not blocked >> (signal.SIGUSR1 - 1) & 1
    print(came, free)
"""


def test_a_signal_that_the_script_blocks_is_for_who_waits_for_it(run_ranks) -> None:
    job = run_ranks(BLOCKS_A_SIGNAL, nproc=1, forked=True)
    assert job.codes == [0], job.errs
    assert job.outs == ["200 0\n"]


# A timer's handler raises wherever it strikes in the guarded part of a step, each time another kind of
# exception; each has to come out of that step.
STORM = """
    import random, signal, sys
    import torch, torch.distributed as dist

    class Preempted(Exception):
        pass

    KINDS = TimeoutError, RuntimeError, Preempted, ValueError
    armed, raised, caught = False, 0, 0

    def handler(signum, frame):
        global armed, raised
        if armed:
            armed = False
            raised += 1
            raise KINDS[raised % len(KINDS)](raised)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    weight = torch.ones(64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 1e-9)
    buffer = torch.ones(8)

    def step():
        weight.square().sum().backward()
        for _ in range(4):
            dist.all_reduce(buffer)
            dist.all_reduce(buffer, async_op=True).wait()
        optimizer.step()
        optimizer.zero_grad()

    def steps():
        global armed
        armed = True
        while raised < 400:
            step()
            assert armed, "what the handler raised was lost"
        armed = False

    for _ in range(3):
        step()
    random.seed(int(sys.argv[1]))
    signal.signal(signal.SIGALRM, handler)
    while raised < 400:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.002), 0.002)
        try:
            steps()
        except KINDS as fault:
            caught += 1
            assert fault.args == (raised,), fault
            torch.set_grad_enabled(True)  # it may have struck as torch was about to
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(raised, caught)
    for _ in range(20):
        step()
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_what_a_signal_handler_raises_always_reaches_the_script(run_ranks, seed: str) -> None:
    job = run_ranks(STORM, nproc=1, forked=True, options=("--every", "1"), arguments=(seed,))
    assert job.codes == [0], job.errs
    assert job.outs == ["400 400\n"]
    assert job.errs == [""]
    calm = job.steps()[-1]  # it measures as before
    assert calm.collectives == 8
    assert calm.backward_ns


# The two ways in which scripts wait for their threads, and what they would wait for.
WAITS_FOR_ITS_THREADS = """
    import threading, time
    import torch

    def work():
        weight = torch.ones(4, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        for _ in range(20):
            weight.sum().backward()
            optimizer.step()
            time.sleep(0.05)

    threading.Thread(target=work).start()
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(30)
    give_up_s = time.monotonic() + 60
    while threading.active_count() > 1 and time.monotonic() < give_up_s:
        time.sleep(0.01)
    print([thread.name for thread in threading.enumerate()])
"""


def test_a_script_that_waits_for_all_its_threads_waits_for_its_own(run_ranks) -> None:
    job = run_ranks(WAITS_FOR_ITS_THREADS, nproc=1, forked=True)
    assert job.codes == [0], job.errs
    assert job.outs == ["['MainThread']\n"]
    assert job.errs == [""]
    assert isinstance(job.messages[-1], RankEnd)


def test_an_unsafe_socket_directory_is_said_once_by_a_thread_that_nobody_sees(run_ranks, sockets) -> None:
    """Logging asks for the current thread, and Python lists whoever asks."""
    sockets.mkdir(mode=0o755)
    job = run_ranks(
        WAITS_FOR_ITS_THREADS.replace("threading.Thread(target=work).start()", "work()"),
        nproc=1,
        listen=False,
        forked=True,
    )
    assert job.codes == [0], job.errs
    assert job.outs == ["['MainThread']\n"]
    assert job.errs[0].count("overlaptop:") == 1
    assert "0700" in job.errs[0]


def _unused_uid() -> int:
    known = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(54_400, 55_400) if uid not in known)


# Root is bound by no limit on processes, so this becomes a user who has none yet, and may have one. He may
# not be allowed to read Python's own files.
ONE_THREAD = """
    import encodings.ascii, os, resource, sys
    import overlaptop.agent.reporting.reporter, overlaptop.agent.script.runner, overlaptop.agent.hooks.steps
    import overlaptop.agent.sources.choice, overlaptop.agent.sources.profilers

    path, uid = sys.argv[1], int(sys.argv[2])
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    sys.argv = ["overlaptop.agent", path]
    overlaptop.agent.script.runner.main()
"""

NEEDS_NO_THREAD = """
import _thread
import torch

weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
for _ in range(3):
    weight.grad = torch.ones(4)
    optimizer.step()
try:
    _thread.start_new_thread(print, ())
except RuntimeError as fault:
    print(weight.tolist(), fault)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without processes")
def test_where_no_thread_is_to_be_had_the_script_runs_unmeasured(run_ranks) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "train.py")
        path.write_text(NEEDS_NO_THREAD)
        job = run_ranks(
            ONE_THREAD, nproc=1, agent=False, forked=True, arguments=(str(path), str(_unused_uid()))
        )
    assert job.codes == [0], job.errs
    assert job.outs[0].endswith("can't start new thread\n")
    assert job.outs[0].startswith("[0.69999")
    (line,) = job.errs[0].splitlines()
    assert "can't start new thread; the job goes on unmeasured" in line


# Looks for children all the time while hubs are started: the first, and one after it was killed.
WAITS_FOR_ANY_CHILD = """
    import glob, json, os, signal, sys, time
    import torch
    import overlaptop

    signals, strangers, own = 0, 0, 0

    def count(signum, frame):
        global signals
        signals += 1

    def reap():
        try:
            os.wait()
            return 1
        except ChildProcessError:
            return 0

    def hub_pid():
        paths = glob.glob(os.environ["OVERLAPTOP_DIR"] + "/*/job.json")
        records = [json.load(open(path)) for path in paths]
        return records[0]["hub_pid"] if records else None

    signal.signal(signal.SIGCHLD, count)
    old = None
    give_up_s = time.monotonic() + 60
    for _ in range(2):
        while (hub := hub_pid()) in (None, old):
            assert time.monotonic() < give_up_s, "no hub"
            strangers += reap()
            time.sleep(0.0005)
        old = hub
        os.kill(old, signal.SIGKILL)
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        while os.wait() != (pid, 7 << 8):
            strangers += 1
        own += 1
    print(own, signals, strangers)
"""


def test_no_child_of_the_jobs_is_the_agents(run_ranks) -> None:
    job = run_ranks(WAITS_FOR_ANY_CHILD, nproc=1, listen=False, forked=True)
    assert job.codes == [0], job.errs
    assert job.outs == ["2 2 0\n"]
    assert job.errs == [""]
