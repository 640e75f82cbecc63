"""Whatever a relay may send, through the whole client to the text on a terminal. For atheris.

Nothing may raise, take long or fill the memory, and what would be printed has no control character in it.
An input is either a stream of bytes behind an honest beginning, or a recipe: which messages to take, which
of their fields to replace by what, and how to cut what comes of it.

    pip install atheris
    PYTHONPATH=. python fuzz/client.py -max_total_time=600 -timeout=10 -rss_limit_mb=1024 [CORPUS]
"""

from __future__ import annotations

import math
import sys
from typing import Any

import atheris
import msgpack
from msgspec.structs import replace

with atheris.instrument_imports(include=["overlaptop"]):
    from overlaptop.fleet.fleet import HISTORY_STEPS, MAX_NOTICES
    from overlaptop.remote.attempt import MAX_INBOX_BYTES
    from overlaptop.wire.bounds import MAX_RANKS
    from overlaptop.wire.codec import encode, frame
    from overlaptop.wire.messages import HubStatus, Notice, RankEnd, RankInfo, TurnedAway, Welcome
    from overlaptop.wire.relaying import (
        MAGIC,
        RelayJobs,
        RelayPing,
        RelayPong,
        RelaySelect,
        RelayStatus,
    )
    from tests.remote.whole_client import HELLO, JOB, RECORD, START_NS, WholeClient, whole_clients
    from tests.wire.examples import (
        COMMAND,
        DETAIL,
        DEVICE,
        GRADIENTS,
        KNOBS,
        MACHINE,
        NUMA,
        REPORT,
        SAMPLE,
        STEP,
    )

INFO = RankInfo(JOB, 0, 0, 2, "far", 7, "t.py", "cuda:0", "nccl", "kernels", "", True, 1, "2.13")
ROWS: list[list[Any]] = [
    msgpack.unpackb(encode(message))
    for message in (
        STEP,
        replace(STEP, rank=0),
        replace(STEP, rank=0, step=8),
        replace(STEP, rank=0, step=8, idle_ns=0),
        DETAIL,
        INFO,
        replace(INFO, rank=1, pid=8),
        COMMAND,
        REPORT,
        replace(REPORT, state="agreed", step=9),
        MACHINE,
        DEVICE,
        NUMA,
        SAMPLE,
        KNOBS,
        GRADIENTS,
        Notice(0, START_NS, "warning", "a word"),
        HubStatus(START_NS, 2, 0, False),
        RankEnd(0, START_NS, True),
        Welcome(4, JOB, "far", "train.py", 2, START_NS),
        TurnedAway("full"),
        HELLO,
        RelayJobs((RECORD,), ""),
        RelayJobs((replace(RECORD, hub_pid=31), replace(RECORD, job="job-2")), "a note"),
        RelayStatus(JOB, True),
        RelayStatus(JOB, False, True),
        RelayPing(1),
        RelayPong(1, START_NS, START_NS, 3, 2),
        RelaySelect(JOB),
    )
]
INTEGERS = (
    0, 1, -1, 2, 9, 255, 4095, 4096, 1 << 20, (1 << 20) + 1, START_NS, 1 << 32,
    (1 << 63) - 1, -(1 << 63), (1 << 63) - 2, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, 0.0, 0.5, 1.0, 1e300, math.nan, math.inf, b"", [], {}, [[]], [0, 1] * 4096, "",
    "\x1b]0;gone\x07\x1b[2J", "two\nlines", "\u202e\u2066right", "x" * 4096, "x" * 4097, "job-1", "job-2",
    "accepted", "agreed", "changed", "written", "failed", "unknown", "set", "restore", "bucket_cap_mb",
    "info", "error", "host", "events",
)  # fmt: skip
PREAMBLES = (
    MAGIC, MAGIC[:9], b"\nOVERLAPTOP-NOTE here\n", b"\nOVERLAPTOP-NOTE wait no job\n",
    b"\nOVERLAPTOP-NOTE fail it \x1b[2J cannot\n", b"\nOVERLAPTOP-NOTE start /x/python\n",
    b"login: \x1b]0;x\x07\n", b"\xff" * 5000,
)  # fmt: skip


def test_one_input(data: bytes) -> None:
    """One relay's life."""
    provider = atheris.FuzzedDataProvider(data)
    client = MAKE()
    if provider.ConsumeBool():
        client.begin()
    if provider.ConsumeBool():
        raw = provider.ConsumeBytes(provider.remaining_bytes())
        step = 1 + len(raw) // 8
        for at in range(0, len(raw), step):
            client.receive(raw[at : at + step])
    else:
        _follow(provider, client)
    client.receive(b"", passed_s=0.6)
    _check(client)


def _follow(provider: atheris.FuzzedDataProvider, client: WholeClient) -> None:
    coming = b""
    for _ in range(200):
        if not provider.remaining_bytes():
            break
        kind = provider.ConsumeIntInRange(0, 15)
        if kind < 11:
            coming += frame(msgpack.packb(_row(provider, kind)))
        elif kind == 11:
            coming += provider.ConsumeBytes(provider.ConsumeIntInRange(0, 40))
        elif kind == 12:
            coming = coming[: provider.ConsumeIntInRange(0, len(coming))]
        elif kind == 13:
            coming += provider.PickValueInList(list(PREAMBLES))
        elif kind == 14:
            _act(provider, client)
        else:
            client.receive(coming, passed_s=provider.PickValueInList([0.0, 0.02, 0.6, 3.0, 20.0]))
            coming = b""
            if provider.ConsumeBool():
                _check(client)
    client.receive(coming)


def _act(provider: atheris.FuzzedDataProvider, client: WholeClient) -> None:
    """What a person does meanwhile."""
    match provider.ConsumeIntInRange(0, 4):
        case 0:
            client.session.send(COMMAND)
        case 1:
            client.session.watch({0, 1, 5})
        case 2:
            client.session.select(provider.PickValueInList(["job-2", JOB]))
        case 3:
            client.connection.retry()
        case _:
            for process in client.connection.processes:
                process.kill()


def _row(provider: atheris.FuzzedDataProvider, kind: int) -> list[Any]:
    """A message's row with ``kind`` or fewer of its values replaced."""
    row = list(provider.PickValueInList(ROWS))
    for _ in range(max(0, kind - 6)):
        _replace_one(provider, row, 3)
    return row


def _replace_one(provider: atheris.FuzzedDataProvider, values: list[Any], depth: int) -> None:
    """Replace a value, or one of those in it, so deep; or add one."""
    at = provider.ConsumeIntInRange(0, len(values))
    if at == len(values):
        values.append(_value(provider))
    elif depth > 1 and isinstance(values[at], list) and provider.ConsumeBool():
        values[at] = list(values[at])
        _replace_one(provider, values[at], depth - 1)
    else:
        values[at] = _value(provider)


def _value(provider: atheris.FuzzedDataProvider) -> Any:
    match provider.ConsumeIntInRange(0, 4):
        case 0 | 1:
            return provider.PickValueInList(list(INTEGERS))
        case 2:
            return provider.ConsumeIntInRange(-100, 100)
        case 3:
            return provider.PickValueInList(list(OTHERS))
        case _:
            return provider.ConsumeUnicodeNoSurrogates(provider.ConsumeIntInRange(0, 30))


def _check(client: WholeClient) -> None:
    page = client.words()
    assert all(line.isprintable() for line in page.split("\n")), repr(page)
    snapshot = client.snapshot
    assert len(snapshot.ranks) <= MAX_RANKS
    assert len(snapshot.notices) <= MAX_NOTICES
    assert all(len(view.history) <= HISTORY_STEPS for view in snapshot.ranks)
    assert "\n" not in client.connection.reason
    assert all(
        len(process.coming) <= len(page) + MAX_INBOX_BYTES for process in client.connection.processes
    )


if __name__ == "__main__":
    atheris.Setup(sys.argv, test_one_input)
    with whole_clients() as MAKE:
        atheris.Fuzz()
