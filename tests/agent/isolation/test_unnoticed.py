"""What a script sees of its process is the same with the agent as without: signals, threads, children."""

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


def test_agents_threads_are_not_the_scripts(run_ranks) -> None:
    job = run_ranks(WAITS_FOR_ITS_THREADS, nproc=1, forked=True)
    assert job.codes == [0], job.errs
    assert job.outs == ["['MainThread']\n"]
    assert job.errs == [""]
    assert isinstance(job.messages[-1], RankEnd)


def test_unsafe_socket_directory_is_logged_once(run_ranks, sockets) -> None:
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
