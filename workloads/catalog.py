"""The bundled workloads, to list or start them. Imports none of them, and no torch."""

from overlaptop.workloads.entries.faults import CAN_BE_LATE, FAULTS
from overlaptop.workloads.entries.workload import Workload as Workload

WORKLOADS: tuple[Workload, ...] = (*CAN_BE_LATE, FAULTS)


def find(name_or_path: str) -> Workload | None:
    """Return the workload with this name (``ddp``, ``ddp.py``) or path; None if it is not bundled."""
    return next((workload for workload in WORKLOADS if workload.is_called(name_or_path)), None)
