"""Probes in children: this interpreter, and others that misbehave."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from overlaptop.doctor import probing
from overlaptop.doctor.children import Child
from overlaptop.doctor.probing import GPUS, SOFTWARE, ProbeReport
from overlaptop.wire.protocol import PROTOCOL_VERSION

from .machines import LAPTOP, machine

TORCH = """
import types, warnings
__version__ = "2.11.0+cu130"
version = types.SimpleNamespace(cuda="13.0", hip=None)
distributed = types.SimpleNamespace(is_available=lambda: True, is_nccl_available=lambda: True)
def is_available():
    warnings.warn("CUDA initialization: the driver is too old")
    return False
cuda = types.SimpleNamespace(
    is_available=is_available, nccl=types.SimpleNamespace(version=lambda: (2, 28, 9))
)
"""
"""What the probe asks of torch, on a machine whose driver does not fit it."""

NVML = """
from types import SimpleNamespace
class NVMLError(Exception):
    def __init__(self, value):
        self.value = value
NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION = 3, 4
NVML_VALUE_TYPE_UNSIGNED_INT, NVML_VALUE_TYPE_UNSIGNED_LONG = 1, 2
NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, NVML_VALUE_TYPE_SIGNED_LONG_LONG = 3, 4
NVML_GPM_METRICS_GET_VERSION = 1
def __getattr__(name):
    if name.startswith("NVML_GPM_METRIC_"):
        return 1
    raise AttributeError(name)
class c_nvmlGpmMetricsGet_t:
    def __init__(self):
        self.metrics = [SimpleNamespace() for _ in range(16)]
nvmlInit = nvmlShutdown = lambda: None
nvmlSystemGetDriverVersion = lambda: b"580.95.05"
nvmlDeviceGetCount = lambda: 2
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetUUID = lambda gpu: f"GPU-{gpu}"
nvmlDeviceGetName = lambda gpu: "NVIDIA H200"
nvmlDeviceGetPciInfo = lambda gpu: SimpleNamespace(busId=f"00000000:1{gpu}:00.0")
nvmlGpmQueryDeviceSupport = lambda gpu: SimpleNamespace(isSupportedDevice=1)
nvmlGpmSampleAlloc = lambda: object()
nvmlGpmSampleFree = lambda sample: None
def nvmlGpmSampleGet(gpu, sample):
    if gpu == 1:
        raise NVMLError(NVML_ERROR_NO_PERMISSION)
"""
"""pynvml, for two GPUs of which the second refuses to be sampled."""


def probe(
    tmp_path: Path, what: str, python: str = sys.executable, modules: Mapping[str, str] | None = None
) -> ProbeReport:
    """Run a probe; `modules`: source by name, found before all others."""
    environ = dict(os.environ)
    if modules is not None:
        (tmp_path / "site").mkdir()
        for name, source in modules.items():
            (tmp_path / "site" / f"{name}.py").write_text(source)
        environ["PYTHONPATH"] = str(tmp_path / "site")
    facts = machine(tmp_path / "root", LAPTOP, python=python, environ=environ, start=Child)
    with probing.probing(facts, what) as read:
        return read()


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "interpreter"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_this_interpreter_is_reported_whatever_lies_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "json", "platform", "overlaptop"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    report = probe(tmp_path, SOFTWARE)
    assert report.end == ""
    assert report.sections["python"]["version"] == platform.python_version()
    assert report.sections["overlaptop"]["protocol"] == PROTOCOL_VERSION
    assert report.sections["overlaptop"]["missing"] == []
    here, there = importlib.metadata.version("torch"), report.sections["torch"]["version"]
    assert there.partition("+")[0] == here.partition("+")[0]


def test_torch_is_reported_with_its_warning(tmp_path: Path) -> None:
    report = probe(tmp_path, SOFTWARE, modules={"torch": TORCH})
    torch = report.sections["torch"]
    assert report.end == ""
    assert [torch[name] for name in ("version", "cuda", "nccl", "gpus", "warning")] == [
        *("2.11.0+cu130", "13.0", "2.28.9", 0),
        "CUDA initialization: the driver is too old",
    ]
    assert report.sections["cupti"]["absent"]


def test_a_torch_that_kills_its_process_leaves_what_was_reported_before(tmp_path: Path) -> None:
    report = probe(tmp_path, SOFTWARE, modules={"torch": "import os; os.abort()"})
    assert report.end == "a signal (6) ended it"
    assert list(report.sections) == ["python", "overlaptop"]


def test_a_torch_that_cannot_be_imported_has_its_reason(tmp_path: Path) -> None:
    broken = "raise OSError('libcudart.so.13: no such\\nfile')"
    torch = probe(tmp_path, SOFTWARE, modules={"torch": broken}).sections["torch"]
    assert torch["error"] == "libcudart.so.13: no such file"


def test_nvml_is_asked_by_the_agents_own_calls(tmp_path: Path) -> None:
    report = probe(tmp_path, GPUS, modules={"pynvml": NVML})
    nvml, gpm = report.sections["nvml"], report.sections["gpm"]
    assert (report.end, nvml["driver"], nvml["gpus"]) == ("", "580.95.05", ["NVIDIA H200", "NVIDIA H200"])
    assert gpm["refused"] == ["no permission"]


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    report = probe(tmp_path, SOFTWARE, "/nowhere/python")
    assert report.end == "the interpreter cannot be run (No such file or directory)"
    assert not report.sections


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("kill -SEGV $$", "a signal (11) ended it"),
        ("echo one >&2; echo 'the last line' >&2; exit 1", "the last line"),
        ("exit 9", "it ended with status 9"),
        ("exec sleep 1000", "it had not ended after 1 s"),
    ],
)
def test_an_interpreter_that_misbehaves_is_reported_by_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, end: str
) -> None:
    if "sleep" in text:
        monkeypatch.setitem(probing.TIMEOUT_S, SOFTWARE, 1.0)
    report = probe(tmp_path, SOFTWARE, script(tmp_path, text))
    assert (report.end, report.sections) == (end, {})


def test_what_is_no_line_of_the_probe_is_passed_over(tmp_path: Path) -> None:
    lines = ("Warning: a banner", "[1, 2]", '{"no": "of"}', '{"of": "python", "version": "3.9"}')
    text = "\n".join(f"echo '{line}'" for line in lines)
    sections = probe(tmp_path, SOFTWARE, script(tmp_path, text)).sections
    assert sections == {"python": {"of": "python", "version": "3.9"}}
