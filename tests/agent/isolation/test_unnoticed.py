"""What a script sees of its process is the same with the agent as without: signals, threads, children."""

from overlaptop.wire.messages import RankEnd

# A timer's handler raises wherever it strikes in the guarded part of a step, each time another kind of
# exception; each has to come out of that step.
STORM = """
    import random, signal
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
    random.seed(1)
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


def test_what_a_signal_handler_raises_always_reaches_the_script(run_ranks) -> None:
    job = run_ranks(STORM, nproc=1, forked=True, options=("--every", "1"))
    assert job.codes == [0], job.errs
    assert job.outs == ["400 400\n"]
    assert job.errs == [""]
    calm = job.steps()[-1]  # it measures as before
    assert calm.collectives == 8
    assert calm.backward_ns


# A script waits for its threads in one of two ways, and for a signal in a thread of its own: none of the
# agent's threads, which are there before the script blocks the signal, may take it.
WAITS_FOR_ITS_THREADS = """
    import contextlib, os, signal, threading, time
    import torch

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

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
    blocked = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/status") as status:
            [mask] = [int(line.split()[1], 16) for line in status if line.startswith("SigBlk")]
            blocked.append(bool(mask >> (signal.SIGUSR1 - 1) & 1))
    print([thread.name for thread in threading.enumerate()], len(blocked) > 1 and all(blocked))
"""


def test_agents_threads_are_not_the_scripts_and_take_no_signal(run_ranks) -> None:
    job = run_ranks(WAITS_FOR_ITS_THREADS, nproc=1, forked=True)
    assert job.codes == [0], job.errs
    assert job.outs == ["['MainThread'] True\n"]
    assert job.errs == [""]
    assert isinstance(job.messages[-1], RankEnd)
