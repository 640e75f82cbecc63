"""What a child process finds out: it runs with the interpreter that is looked at, and may crash or hang.

Its text is handed to `python -c`, so it stands alone, and any Python 3.7 can read it. It prints a line of
JSON for each thing that it has found out, as soon as it has: {"of": "torch", ...}.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import platform
import sys
import warnings
from pathlib import Path
from typing import Any

_CONCURRENT_KERNEL = 10
_MAX_TEXT_CHARS = 300


def report(of: str, **values: Any) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps(dict(values, of=of)) + "\n")
    sys.stdout.flush()


def software() -> None:
    """Report this interpreter, the overlaptop and the torch in it, and CUPTI."""
    report("python", version=platform.python_version())
    missing = [name for name in ("msgpack", "msgspec", "zmq") if importlib.util.find_spec(name) is None]
    try:
        package = importlib.import_module("overlaptop")
        protocol = importlib.import_module("overlaptop.wire.protocol").PROTOCOL_VERSION
        path = next(iter(package.__path__))
        report("overlaptop", version=package.__version__, protocol=protocol, path=path, missing=missing)
    except Exception as reason:  # noqa: BLE001 # whatever that package does
        report("overlaptop", error=_words(reason))
    if importlib.util.find_spec("torch") is None:
        report("torch", absent=True)
        return
    try:
        # Nothing of overlaptop's but the agent and the workloads may import torch: this is another process.
        torch = importlib.import_module("torch")
    except BaseException as reason:  # noqa: BLE001 # it may even end the process
        report("torch", error=_words(reason))
        return
    _report_torch(torch)
    if torch.version.cuda:
        _report_cupti()


def _report_torch(torch: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    nccl = None
    if torch.version.cuda and torch.distributed.is_available() and torch.distributed.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    report(
        "torch",
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=getattr(torch.version, "hip", None),
        distributed=torch.distributed.is_available(),
        nccl=nccl,
        gpus=gpus,
        warning=str(caught[0].message)[:_MAX_TEXT_CHARS] if caught else "",
    )


def _report_cupti() -> None:
    path = None
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        for line in maps:
            _, slash, rest = line.rstrip("\n").partition("/")
            if slash and rest.rpartition("/")[2].startswith("libcupti.so"):
                path = slash + rest
    if path is None:
        report("cupti", absent=True)
        return
    try:
        library = ctypes.CDLL(path)
        number = ctypes.c_uint32()
        status = library.cuptiGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as reason:
        report("cupti", path=path, error=_words(reason))
        return
    report("cupti", path=path, version=number.value if status == 0 else None)
    # Recording is asked for, as the agent does, and nothing is launched: no context is made on any GPU.
    status = library.cuptiActivityEnable(ctypes.c_int(_CONCURRENT_KERNEL))
    meaning, refusal = ctypes.c_char_p(), f"error {status}" if status else ""
    if status != 0 and library.cuptiGetResultString(status, ctypes.byref(meaning)) == 0 and meaning.value:
        refusal = meaning.value.decode(errors="replace")
    report("recording", refusal=refusal)


def gpus() -> None:
    """Report the GPUs as NVML has them, by the agent's own calls."""
    try:
        nvml_module = importlib.import_module("overlaptop.agent.telemetry.nvml")
        gpm_module = importlib.import_module("overlaptop.agent.telemetry.gpm")
    except Exception as reason:  # noqa: BLE001 # as above
        report("nvml", error=_words(reason))
        return
    refusal = nvml_module.NvmlError
    try:
        nvml_module.import_library()
        nvml = nvml_module.Nvml.open()
        driver = nvml_module.text(nvml.call("nvmlSystemGetDriverVersion"))
        sites = nvml.gpus()
    except refusal as reason:
        report("nvml", error=str(reason))
        return
    report("nvml", driver=driver, gpus=[site.name for site in sites])
    refused = set()
    for site in sites:
        try:
            gpm = gpm_module.Gpm(nvml, nvml.handle(site.uuid))
            try:
                gpm.read()
            finally:
                gpm.close()
        except refusal as reason:
            if str(reason) != str(nvml_module.NOT_YET):  # a first sample measures nothing yet, as it should
                refused.add(str(reason))
    report("gpm", gpus=len(sites), refused=sorted(refused))
    nvml.close()


def _words(reason: BaseException) -> str:
    text = " ".join(str(reason).split())
    return (text or type(reason).__name__)[:_MAX_TEXT_CHARS]


if __name__ == "__main__":
    {"software": software, "gpus": gpus}[sys.argv[1]]()
