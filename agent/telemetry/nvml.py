"""NVML, opened when it is first needed: the GPUs that it shows, and calls that say why they are refused."""

from __future__ import annotations

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

_IN_WORDS = {
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
FORK_WAITS_S = 0.1
"""The longest that a fork waits for a call under way to return; most take a millisecond, none 30 ms."""


class _Gate:
    """Lets one call through at a time, and no child be forked in the middle of one.

    The child would have the locks of NVML and of pynvml held for ever, and wait for them in the first call
    of its own: torch counts the GPUs by NVML. Programs that are executed are not concerned.
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
    """Import pynvml, without which `Nvml.open` refuses.

    To be called on the job's own thread: a child that is forked in the middle of another thread's import is
    left with half a module.
    """
    try:
        importlib.import_module("pynvml")  # 30 ms, unless torch has imported it already
    except Exception as fault:  # another package may go by this name
        if raised_by_job(fault):
            raise


class NvmlError(Exception):
    """NVML is not there, or refused; the text is one line for the screen."""

    def __init__(self, reason: str, name: str = "") -> None:
        """``name``: NVML's own, as ``NVML_ERROR_TIMEOUT``; empty where the call did not get so far."""
        super().__init__(reason)
        self._name = name
        self.lasting = not name or name in _LASTING
        """Whether to ask again is of no use."""
        self.means_none = name in ("NVML_ERROR_INVALID_ARGUMENT", "NVML_ERROR_NOT_SUPPORTED")
        """Whether the GPU has no such part (a link, a counter)."""

    def again(self) -> NvmlError:
        """The same, to raise one that was kept: raised twice, it would keep the frames of both."""
        return NvmlError(str(self), self._name)


NOT_YET = NvmlError("the first of two readings", "NVML_ERROR_NOT_READY")
"""Why there is no rate at first."""


class Nvml:
    """An open NVML. One thread uses it, and closes it."""

    def __init__(self, library: Any) -> None:
        """``library``: the module pynvml, already initialised."""
        self.library = library
        self._names = {code: name for name, code in vars(library).items() if name.startswith("NVML_ERROR_")}
        self._members = {
            library.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
            library.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
            library.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
            library.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        }
        self._handles: dict[str, Any] = {}

    @classmethod
    def open(cls) -> Nvml:
        """Load the driver's library and initialise it; raises NvmlError with the reason where it cannot."""
        library = sys.modules.get("pynvml")
        if library is None:
            raise NvmlError("the package nvidia-ml-py is missing, or cannot be imported")
        nvml = cls(library)
        nvml.call("nvmlInit")
        return nvml

    def close(self) -> None:
        """Let NVML go; the job's own use of it goes on, for NVML counts who opened it."""
        with contextlib.suppress(NvmlError):
            self.call("nvmlShutdown")

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of pynvml's; raises NvmlError where it is refused or not there."""
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
        """The error that one of NVML's return codes means."""
        name = self._names.get(code, "")
        words = _IN_WORDS.get(name)
        if words is None:
            with _gate:  # pynvml asks the driver's library
                words = f"NVML: {str(self.library.NVMLError(code)).rstrip('.').lower()}"
        return NvmlError(words, name or "unknown")

    def number(self, value: Any) -> int:
        """What a field's value (``c_nvmlFieldValue_t``) holds; raises NvmlError where it was refused."""
        if value.nvmlReturn != 0:
            raise self.error(value.nvmlReturn)
        member = self._members.get(value.valueType)
        if member is None:
            raise NvmlError(f"NVML: field {value.fieldId} is no whole number")
        return int(getattr(value.value, member))

    def gpus(self) -> tuple[GpuSite, ...]:
        """The GPUs that NVML shows here, by its index; one that does not answer is left out.

        `GpuSite.numa_node` is left None. Raises NvmlError where NVML does not even count them.
        """
        sites = []
        for index in range(self.call("nvmlDeviceGetCount")):
            with contextlib.suppress(NvmlError):
                handle = self.call("nvmlDeviceGetHandleByIndex", index)
                uuid = text(self.call("nvmlDeviceGetUUID", handle))
                name = text(self.call("nvmlDeviceGetName", handle))
                bus_id = pci_bus_id(text(self.call("nvmlDeviceGetPciInfo", handle).busId))
                self._handles[uuid] = handle
                sites.append(GpuSite(index, uuid, name, bus_id, None))
        return tuple(sites)

    def handle(self, uuid: str) -> Any:
        """NVML's handle of the GPU with this UUID; raises NvmlError where there is none here."""
        if uuid not in self._handles:
            self._handles[uuid] = self.call("nvmlDeviceGetHandleByUUID", uuid)
        return self._handles[uuid]


def text(raw: str | bytes) -> str:
    """NVML's text; whether pynvml decodes it depends on its version."""
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def pci_bus_id(nvml_id: str) -> str:
    """``00000000:1B:00.0`` as sysfs has it: ``0000:1b:00.0``; raises NvmlError for another shape."""
    parts = _BUS_ID.fullmatch(nvml_id.strip().lower())
    if parts is None:
        raise NvmlError(f"NVML: {nvml_id[:40]!r} is no address on PCI")
    return f"{int(parts[1], 16):04x}:{parts[2]}"
