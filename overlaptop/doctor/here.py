"""All checks of this machine, in the order in which they are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from overlaptop.doctor.facts import Facts
from overlaptop.doctor.findings import Finding, unknown
from overlaptop.doctor.installed import check_installation
from overlaptop.doctor.machine import check_clock, check_descriptors, check_devices, check_gpus
from overlaptop.doctor.probing import GPUS, SOFTWARE, probing
from overlaptop.doctor.sockets import check_directory, check_jobs
from overlaptop.doctor.software import check_software
from overlaptop.doctor.terminal import check_ssh, check_terminal, check_unicode

_QUICK: tuple[tuple[str, Callable[[Facts], Finding | Iterable[Finding]]], ...] = (
    ("sockets", check_directory),
    ("jobs", check_jobs),
    ("terminal", check_terminal),
    ("unicode", check_unicode),
    ("ssh", check_ssh),
    ("clock", check_clock),
    ("files", check_descriptors),
    ("devices", check_devices),
)


def examine(facts: Facts) -> Iterator[Finding]:
    """Look at this machine. Each finding is given as soon as it is there; all within a minute or so."""
    with probing(facts, GPUS) as gpus, probing(facts, SOFTWARE) as software:
        yield check_installation()
        for name, check in _QUICK:
            yield from _guarded(name, partial(check, facts))
        yield from _guarded("nvml", lambda: check_gpus(facts, gpus()))
        yield from _guarded("python", lambda: check_software(facts, software()))


def _guarded(name: str, look: Callable[[], Finding | Iterable[Finding]]) -> Iterator[Finding]:
    """What a check finds. A fault in one check must not hide what the others find."""
    try:
        found = look()
        yield from (found,) if isinstance(found, Finding) else found
    except Exception as reason:  # noqa: BLE001
        yield unknown(name, f"the check itself failed ({type(reason).__name__}: {reason})")
