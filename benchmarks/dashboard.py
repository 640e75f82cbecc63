"""Measure what watching costs: first paint, CPU, bytes on a line, and how late the newest step is.

    python benchmarks/dashboard.py [--ranks 8] [--steps-per-s 20] [--seconds 10]
    python benchmarks/dashboard.py --line 30000:100
    python benchmarks/dashboard.py --ranks 1024 --steps-per-s 10 [--hubs 128 [--gather]] [--late 700]
    python benchmarks/dashboard.py --ranks 2 --past 1000000

Real hubs, and ranks that this plays; one step in four is measured, with a timeline if the rank is watched.
First ``overlaptop`` runs on a terminal of its own, then ``overlaptop --json --detail``, whose records say
how late they come. With ``--line`` both connect by ``--via`` through a pipe of this rate (bytes a second)
and latency (ms). With several hubs, each is a host of its own, reached by ``--via``; with
``--gather`` all are reached through the first one. ``--past``: steps made before the dashboard comes.
``--late``: this rank becomes late, by LATE_SHARE of a step; says how soon the dashboard names it.
"""

import argparse
import json
import os
import pty
import queue
import secrets
import select
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path

from pairs import options_of, spread
from torchrun import OVERLAPTOP, job_folder, running

from overlaptop.jobs.gather_key import VARIABLE
from overlaptop.jobs.hub_command import hub_command
from overlaptop.jobs.sockets import ranks_socket
from overlaptop.wire.codec import FrameReader, decode, encode, frame
from overlaptop.wire.joining import Gather, Gathered, Watch
from overlaptop.wire.messages import CollectiveSpan, RankInfo, StepDetail, StepTotals
from overlaptop.wire.schema import Message

KEY = "played"
COLUMNS, ROWS = 160, 45
LATE = "late"  # File with the number of the rank that is to be late
BUCKETS, BUCKET_BYTES = 12, 25 << 20
DETAILED_EVERY = 4
NODE_RANKS = 8
LATE_SHARE, NAMED_WITHIN_S = 0.1, 60.0
SETTLE_S, RANKS_SETTLED_A_S = 3.0, 256
"""After the first paint: late imports and the history belong to the start, and longer with more ranks."""
LINE_CHUNK_BYTES = 4096
LINE_HOLDS_CHUNKS = 16  # 64 KiB, as ssh and TCP hold some


def greeting(rank: int, ranks: int) -> RankInfo:
    """Return what a rank says of itself."""
    node, local_rank = divmod(rank, NODE_RANKS)
    return RankInfo(
        job=KEY, rank=rank, local_rank=local_rank, world_size=ranks, host=f"gpu-{node}", pid=os.getpid(),
        script="train.py", device="NVIDIA H200", backend="nccl 2.28.9", source="kernels", source_reason="",
        compute_exact=True, detail_every=DETAILED_EVERY, torch_version="2.13.0",
    )  # fmt: skip


def messages(
    rank: int, step: int, start_ns: int, step_ns: int, *, detail: bool = True, late_rank: int | None = None
) -> list[Message]:
    """Return what a rank sends of one step: compute without a gap, buckets beside its second half."""
    delay_ns = 0 if late_rank is None else round(step_ns * LATE_SHARE)
    late_ns = (rank * 7919 + step * 104_729) * 31_337 % (step_ns // 100) + delay_ns * (rank == late_rank)
    phases_ns = step_ns // 3, step_ns // 2, step_ns // 12
    if step % DETAILED_EVERY:
        unknown = (None,) * 8
        return [StepTotals(rank, step, start_ns, step_ns, *unknown, *phases_ns, None, None, dropped=0)]
    bucket_ns = step_ns * 2 // 5 // BUCKETS
    begins_ns = [step_ns // 2 + at * bucket_ns for at in range(BUCKETS)]
    comm: list[tuple[int, int]] = []
    for begin in begins_ns:
        earliest_ns = comm[-1][1] if comm else 0
        comm.append((max(begin + late_ns, earliest_ns), begin + delay_ns + bucket_ns * 2 // 5))
    compute_ns = begins_ns[-1] + late_ns
    comm_ns = sum(end - begin for begin, end in comm)
    exposed_ns = sum(max(0, end - max(begin, compute_ns)) for begin, end in comm)
    forward_ns, backward_ns, optimizer_ns = phases_ns
    totals = StepTotals(
        rank=rank, step=step, start_ns=start_ns, step_ns=step_ns, compute_ns=compute_ns, comm_ns=comm_ns,
        hidden_ns=comm_ns - exposed_ns, exposed_ns=exposed_ns,
        compute_only_ns=compute_ns - comm_ns + exposed_ns, copy_only_ns=0,
        idle_ns=step_ns - compute_ns - exposed_ns, stall_ns=exposed_ns, forward_ns=forward_ns,
        backward_ns=backward_ns, optimizer_ns=optimizer_ns, collectives=BUCKETS,
        comm_bytes=BUCKETS * BUCKET_BYTES, dropped=0,
    )  # fmt: skip
    if not detail:
        return [totals]
    collectives = tuple(
        CollectiveSpan("allreduce_", BUCKET_BYTES, "0 default_pg", True, *span, step * BUCKETS + at + 1)
        for at, span in enumerate(comm)
    )
    flat = tuple(chain(*comm))
    timeline = StepDetail(rank, step, start_ns, step_ns, (), (0, compute_ns), flat, (), (), collectives)
    return [totals, timeline]


class Rank:
    """A rank's connection to its hub."""

    def __init__(self, rank: int, ranks: int, path: Path) -> None:
        self.rank = rank
        self.detail = False
        self._reader = FrameReader()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(os.fspath(path))
        self._socket.sendall(frame(encode(greeting(rank, ranks))))

    def gather(self, host: str, port: int) -> Gathered:
        """Have the hub bind (the first rank's) or connect; return its answer."""
        self._socket.sendall(frame(encode(Gather(self.rank, self.rank == 0, host, port))))
        while True:
            for payload in self._reader.feed(self._socket.recv(1 << 16)):
                if isinstance(answer := decode(payload), Gathered):
                    return answer

    def send(self, step: int, start_ns: int, step_ns: int, late_rank: int | None) -> None:
        """Send a step, and read whether the hub wants timelines."""
        made = messages(self.rank, step, start_ns, step_ns, detail=self.detail, late_rank=late_rank)
        self._socket.sendall(b"".join(frame(encode(each)) for each in made))
        if step % DETAILED_EVERY:
            return
        with suppress(BlockingIOError):
            for payload in self._reader.feed(self._socket.recv(1 << 16, socket.MSG_DONTWAIT)):
                if isinstance(wanted := decode(payload), Watch):
                    self.detail = wanted.detail


def play(options: argparse.Namespace, step_ns: int) -> None:
    """Start the hubs, send the past steps at once, write the time of step 0 to the file `options.play`,
    and send what ranks would until this process ends. One is late once its number is in LATE beside it.
    """
    ranks, hubs = options.ranks, options.hubs
    lines: list[Rank] = []
    root = "127.0.0.1", 0
    os.environ[VARIABLE] = secrets.token_hex(32)
    for hub, folder in enumerate(hub_folders(hubs)):
        os.environ["OVERLAPTOP_DIR"] = folder
        command, environment = hub_command(KEY, "train.py", ranks, os.getpid(), os.fspath(Path.cwd()))
        subprocess.run(command, env=environment, check=True)
        here = range(hub * ranks // hubs, (hub + 1) * ranks // hubs)
        own = [Rank(each, ranks, ranks_socket(KEY)) for each in here]
        lines += own
        if options.gather:
            answer = own[0].gather(*root)
            root = answer.host, answer.port
    late = options.play.with_name(LATE)
    began_ns = time.time_ns() - options.past * step_ns
    for step in count():
        if step == options.past:
            began_ns = time.time_ns() - step * step_ns
            options.play.write_text(str(began_ns))
        time.sleep(max(0.0, (began_ns + (step + 1) * step_ns - time.time_ns()) / 1e9))
        start_ns = began_ns + step * step_ns
        if step >= options.past:
            start_ns = time.time_ns() - step_ns  # this process may be behind
        late_rank = int(late.read_text()) if late.exists() else None
        for line in lines:
            line.send(step, start_ns, step_ns, late_rank)


def hub_folders(hubs: int) -> list[str]:
    """Return the folder of each hub's job."""
    folder = os.environ["OVERLAPTOP_DIR"]
    return [folder, *(f"{folder}-{hub}" for hub in range(1, hubs))]


def show(drawings: Path, words: Sequence[str]) -> int:
    """Run the dashboard; at each drawing write the newest step of all ranks, its age in s, and the rank
    named as late (-1: none).
    """
    from overlaptop.cli import main as overlaptop_main
    from overlaptop.tui.app import OverlaptopApp

    draw = OverlaptopApp.show

    def drawn(app: OverlaptopApp) -> None:
        draw(app)
        newest = [view.last for view in app.dashboard.state.snapshot.ranks if view.last is not None]
        if newest:
            last = min(newest, key=lambda step: step.step)
            age_s = (time.time_ns() - last.start_ns - last.step_ns) / 1e9
            window = app.dashboard.latest.wait_window
            late_rank = window.late[0].rank if window is not None and window.late else -1
            with drawings.open("a") as file:
                file.write(f"{last.step} {age_s} {late_rank}\n")

    OverlaptopApp.show = drawn  # type: ignore[method-assign, assignment]
    return overlaptop_main(list(words))


def drawn_in(drawings: Path) -> list[tuple[int, float, int]]:
    """Return what `show` wrote of each drawing."""
    lines = map(str.split, drawings.read_text().splitlines())
    return [(int(step), float(age_s), int(late_rank)) for step, age_s, late_rank in lines]


def slow_line(rate: str, counted: Path, command: Sequence[str]) -> int:
    """Run a command behind a slow pipe; write how many bytes it has sent."""
    bytes_per_s, latency_ms = (float(part) for part in rate.split(":"))
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None

    def copy(source: int, sink: int, counts: bool) -> None:
        held: queue.Queue[tuple[float, bytes]] = queue.Queue(LINE_HOLDS_CHUNKS)

        def write() -> None:
            total_bytes = 0
            try:
                while chunk := (item := held.get())[1]:
                    time.sleep(max(0.0, item[0] - time.monotonic()) + len(chunk) / bytes_per_s)
                    total_bytes += os.write(sink, chunk)
                    if counts:
                        counted.write_text(str(total_bytes))
                os.close(sink)
            except OSError:  # the other end has gone, or the benchmark with its folder
                child.kill()
                os._exit(1)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        while chunk := os.read(source, LINE_CHUNK_BYTES):
            held.put((time.monotonic() + latency_ms / 1e3, chunk))
        held.put((0.0, b""))
        writer.join()

    threading.Thread(target=copy, args=(0, child.stdin.fileno(), False), daemon=True).start()
    copy(child.stdout.fileno(), os.dup(1), counts=True)
    return child.wait()


def measure_naming(late_rank: int, terminal: int, drawings: Path) -> None:
    """Have a rank become late, and print after which time the dashboard names it."""
    drawings.with_name(LATE).write_text(str(late_rank))
    from_s = time.monotonic()
    while time.monotonic() - from_s < NAMED_WITHIN_S:
        read_for(terminal, 0.1)
        if drawn_in(drawings)[-1][-1] == late_rank:
            print(f"late rank      named after {time.monotonic() - from_s:.1f} s")
            return
    print(f"late rank      not named within {NAMED_WITHIN_S:.0f} s")


def read_for(terminal: int, seconds: float, until: Sequence[str] = ()) -> None:
    """Read the output until all of these words came. SystemExit: they did not."""
    written, until_s = b"", time.monotonic() + seconds
    while time.monotonic() < until_s:
        if select.select([terminal], [], [], 0.05)[0]:
            written += os.read(terminal, 1 << 16)
        if until and all(word.encode() in written for word in until):
            return
    if until:
        raise SystemExit(f"nothing was painted within {seconds:.0f} s: {written[-2000:]!r}")


def cpu_s(pid: int) -> float:
    """Return a process's CPU time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> float:
    """Return a process's largest resident memory so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measure_screen(
    command: Sequence[str], drawings: Path, hub_pids: Sequence[int], options: argparse.Namespace
) -> None:
    """Print what the dashboard takes."""
    terminal, inner = pty.openpty()
    termios.tcsetwinsize(inner, (ROWS, COLUMNS))
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    started_s = time.monotonic()
    with running(command, stdin=inner, stdout=inner, stderr=inner, env=environment) as dashboard:
        read_for(terminal, 60.0, ["exposed", "train.py"])
        print(f"first paint    {(time.monotonic() - started_s) * 1e3:.0f} ms after process start")
        read_for(terminal, SETTLE_S + options.ranks / RANKS_SETTLED_A_S)
        drawings.write_text("")
        pids = (dashboard.pid, *hub_pids)
        before_s, from_s = list(map(cpu_s, pids)), time.monotonic()
        read_for(terminal, options.seconds)
        took_s = time.monotonic() - from_s
        after_s = map(cpu_s, pids)
        own, *hubs = ((after - before) / took_s for after, before in zip(after_s, before_s, strict=True))
        print(f"CPU            {own:.1%} of one core")
        print(f"hubs           {sum(hubs):.1%} of one core, the first {hubs[0]:.1%}")
        print(f"memory         {peak_mib(pids[0]):.0f} MiB at most, first hub {peak_mib(pids[1]):.0f} MiB")
        drawn = drawn_in(drawings)
        if not drawn:
            raise SystemExit("nothing was drawn after the first paint")
        print(f"the job        {(drawn[-1][0] - drawn[0][0]) / took_s:.1f} steps a second")
        print(f"a step is      {spread([age_s for _, age_s, _ in drawn])} s old when drawn")
        if options.late is not None:
            measure_naming(options.late, terminal, drawings)


def measure_stream(
    where: Sequence[str], counted: Path, seconds: float, step_ns: int, began_ns: int
) -> None:
    """Print how late records come, and how many bytes a line carried for them."""
    late_s: list[float] = []
    split = 0
    with running([*OVERLAPTOP, "--json", "--detail", *where], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        from_s, from_bytes = 0.0, 0
        for line in process.stdout:
            record = json.loads(line)
            if record["type"] != "step":
                continue
            now_s = time.monotonic()
            from_s = from_s or now_s
            if now_s - from_s > SETTLE_S:
                from_bytes = from_bytes or bytes_of(counted)
                late_s.append((time.time_ns() - began_ns - (record["step"] + 1) * step_ns) / 1e9)
                split += record["wait_ns"] is not None
            if now_s - from_s > SETTLE_S + seconds:
                break
    print(f"steps          {len(late_s) / seconds:.0f} a second, {split / seconds:.0f} of them with waits")
    if late_s:
        print(f"a step is      {spread(late_s)} s old when its record is written")
    if from_bytes:
        print(f"line           {(bytes_of(counted) - from_bytes) / seconds / 1024:.1f} KiB/s")


def bytes_of(counted: Path) -> int:
    """Return what `slow_line` has counted; 0 where there is no line."""
    with suppress(OSError, ValueError):
        return int(counted.read_text())
    return 0


def main() -> None:
    """Measure and print."""
    parser = options_of(__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps-per-s", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--line", default="", metavar="BYTES_PER_S:LATENCY_MS")
    parser.add_argument("--hubs", type=int, default=1)
    parser.add_argument("--gather", action="store_true")
    parser.add_argument("--past", type=int, default=0, metavar="STEPS")
    parser.add_argument("--late", type=int, metavar="RANK")
    parser.add_argument("--play", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--show", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("--through", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    step_ns = round(1e9 / options.steps_per_s)
    if options.play:
        play(options, step_ns)
    if options.show:
        drawings, *words = options.show
        raise SystemExit(show(Path(drawings), words))
    if options.through:
        counted, *command = options.through
        raise SystemExit(slow_line(options.line, Path(counted), command))
    with job_folder() as folder:
        counted = folder / "bytes"
        this = [sys.executable, str(Path(__file__).resolve())]
        words = f"{' '.join(this)} --line {options.line} --through {counted}"
        where = ["--via", words, "--python", sys.executable] if options.line else []
        if options.hubs > 1 and not options.gather:
            vias = [["--via", f"env OVERLAPTOP_DIR={each}"] for each in hub_folders(options.hubs)]
            where = [*chain(*vias), "--python", sys.executable]
        ready = folder / "ready"
        with running([*this, *sys.argv[1:], "--play", str(ready)]) as played:
            while not ready.exists():
                time.sleep(0.1)
                if played.poll() is not None:
                    raise SystemExit("the ranks cannot be played")
            time.sleep(SETTLE_S)
            print(f"{options.ranks} ranks at {options.steps_per_s:g} steps/s each, {COLUMNS}x{ROWS}")
            records = [path for each in hub_folders(options.hubs) for path in Path(each).glob("*/job.json")]
            pids = [json.loads(path.read_text())["hub_pid"] for path in records]
            drawings = folder / "drawings"
            measure_screen([*this, "--show", str(drawings), *where], drawings, pids, options)
            measure_stream(where, counted, options.seconds, step_ns, int(ready.read_text()))


if __name__ == "__main__":
    main()
