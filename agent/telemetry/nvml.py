"""NVML, opened on first use: the GPUs that it shows, and calls that say why they fail."""

import contextlib
import importlib
import os
import re
import sys
import threading
from typing import Any

from overlaptop.agent.isolation.fault_barrier import defer_exceptions
from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.wire.devices import GpuSite

HZ_PER_MHZ = 1_000_000

_DESCRIPTIONS = {
    "NVML_ERROR_NOT_SUPPORTED": "not supported by this GPU or driver",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "this driver is too old for it",
    "NVML_ERROR_NO_PERMISSION": "no permission",
    "NVML_ERROR_LIBRARY_NOT_FOUND": "no NVIDIA driver (libnvidia-ml.so.1 is missing)",
    "NVML_ERROR_DRIVER_NOT_LOADED": "no NVIDIA driver is loaded",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the NVIDIA driver and libnvidia-ml.so.1 differ in version",
    "NVML_ERROR_GPU_IS_LOST": "the GPU is lost: it fell off the bus",
    "NVML_ERROR_TIMEOUT": "the driver did not answer in time",
}
_LASTING = (
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_DEPRECATED",
)
_BUS_ID = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
FORK_WAITS_S = 0.1  # Longest wait of a fork for a running NVML call; most take a millisecond, none 30 ms


class _Gate:
    """Lets one call through at a time, and lets no child be forked during a call.

    Such a child would inherit locked locks of NVML and pynvml and hang in its first call: torch counts GPUs
    by NVML. Children that execute a program are not affected.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forking = threading.local()
        os.register_at_fork(
            before=defer_exceptions(self._before),
            after_in_parent=self._in_parent,
            after_in_child=self._in_child,
        )

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _before(self) -> None:
        self._forking.holds = self._lock.acquire(timeout=FORK_WAITS_S)

    def _in_parent(self) -> None:
        if self._forking.holds:
            self._lock.release()

    def _in_child(self) -> None:
        self._lock = threading.Lock()


_gate = _Gate()


def import_library() -> None:
    """Import pynvml, which `Nvml.open` needs.

    Call it on the job's thread: a child that forks during another thread's import inherits half a module.
    """
    try:
        importlib.import_module("pynvml")  # 30 ms, unless torch has imported it already
    except Exception as fault:  # another package may have this name
        if raised_by_job(fault):
            raise


class NvmlError(Exception):
    """NVML is missing, or refused; the text is one line for the screen."""

    def __init__(self, reason: str, name: str = "") -> None:
        """``name``: NVML's error, as ``NVML_ERROR_TIMEOUT``; empty if no NVML function was called."""
        super().__init__(reason)
        self.lasting = not name or name in _LASTING  # Whether retrying is useless
        self.means_none = name in ("NVML_ERROR_INVALID_ARGUMENT", "NVML_ERROR_NOT_SUPPORTED")
        """Whether the GPU lacks the part (a link, a counter)."""


NOT_YET = "the first of two readings"  # Why the first rate is missing


class Nvml:
    """An open NVML. The thread that opened it uses and closes it."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self._names = {code: name for name, code in vars(library).items() if name.startswith("NVML_ERROR_")}
        self._members = {
            library.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            library.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
            library.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        }
        self._handles: dict[str, Any] = {}

    @classmethod
    def open(cls) -> "Nvml":
        """Load and initialise the driver's library; raises NvmlError with the reason if that fails."""
        library = sys.modules.get("pynvml")
        if library is None:
            raise NvmlError("the package nvidia-ml-py is missing, or cannot be imported")
        nvml = cls(library)
        nvml.call("nvmlInit")
        return nvml

    def close(self) -> None:
        with contextlib.suppress(NvmlError):
            self.call("nvmlShutdown")

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a pynvml function; raises NvmlError if it is refused or missing."""
        library = self.library
        try:
            with _gate:
                return getattr(library, name)(*arguments)
        except library.NVMLError as refusal:
            raise self.error(refusal.value) from None
        except AttributeError:
            raise NvmlError(f"this nvidia-ml-py has no {name}") from None
        except UnicodeDecodeError:
            raise NvmlError(f"NVML: {name} gave no text") from None

    def error(self, code: int) -> NvmlError:
        name = self._names.get(code, "")
        words = _DESCRIPTIONS.get(name)
        if words is None:
            with _gate:  # pynvml calls the driver's library
                words = f"NVML: {str(self.library.NVMLError(code)).rstrip('.').lower()}"
        return NvmlError(words, name or "unknown")

    def number(self, value: Any) -> int:
        """Return a field's value (``c_nvmlFieldValue_t``); raises NvmlError if it was refused."""
        if value.nvmlReturn != 0:
            raise self.error(value.nvmlReturn)
        member = self._members.get(value.valueType)
        if member is None:
            raise NvmlError(f"NVML: field {value.fieldId} is no whole number")
        return int(getattr(value.value, member))

    def gpus(self) -> tuple[GpuSite, ...]:
        """Return the GPUs that NVML shows, by index; GPUs that do not answer are left out.

        `GpuSite.numa_node` is None. Raises NvmlError if NVML cannot even count them.
        """
        sites = []
        for index in range(self.call("nvmlDeviceGetCount")):
            with contextlib.suppress(NvmlError):
                handle = self.call("nvmlDeviceGetHandleByIndex", index)
                uuid = self.call("nvmlDeviceGetUUID", handle)
                name = self.call("nvmlDeviceGetName", handle)
                bus_id = pci_bus_id(self.call("nvmlDeviceGetPciInfo", handle).busId)
                self._handles[uuid] = handle
                sites.append(GpuSite(index, uuid, name, bus_id, None))
        return tuple(sites)

    def handle(self, uuid: str) -> Any:
        """Return NVML's handle of the GPU with this UUID; raises NvmlError if there is none."""
        if uuid not in self._handles:
            self._handles[uuid] = self.call("nvmlDeviceGetHandleByUUID", uuid)
        return self._handles[uuid]


def pci_bus_id(nvml_id: str) -> str:
    """Convert ``00000000:1B:00.0`` to sysfs's ``0000:1b:00.0``; raises NvmlError for other formats."""
    parts = _BUS_ID.fullmatch(nvml_id.strip().lower())
    if parts is None:
        raise NvmlError(f"NVML: {nvml_id[:40]!r} is no address on PCI")
    return f"{int(parts[1], 16):04x}:{parts[2]}"
