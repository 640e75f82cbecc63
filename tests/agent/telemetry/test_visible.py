"""Which GPU a rank will use, told from the environment alone."""

from __future__ import annotations

import pytest

from overlaptop.agent.telemetry.files import UnavailableError
from overlaptop.agent.telemetry.visible import gpus_of_rank, visible_gpus
from overlaptop.wire.devices import GpuSite


def site(index: int, uuid: str = "", name: str = "NVIDIA H200") -> GpuSite:
    return GpuSite(index, uuid or f"GPU-{index}a{index}b-cafe", name, f"0000:{index + 1:02x}:00.0", None)


FOUR = tuple(map(site, range(4)))
MIXED = (site(0), site(1, name="NVIDIA T400"), site(2))


def shown(value: str | None, gpus: tuple[GpuSite, ...] = FOUR, **more: str) -> list[int]:
    environ = more if value is None else {"CUDA_VISIBLE_DEVICES": value, **more}
    return [gpu.index for gpu in visible_gpus(gpus, environ)]


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 3 , 1 ", [3, 1]),
        ("0,-1,2", [0]),
        ("1,9,2", [1]),
        ("1,,2", [1]),
        ("1,x", [1]),
        ("GPU-2a2b-cafe", [2]),
        ("GPU-2a", [2]),
        ("GPU-2A,GPU-0a0", [2, 0]),
        ("GPU-1a,0", [1]),
        ("0,GPU-1a", [0]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(value: str | None, indices: list[int]) -> None:
    assert shown(value) == indices


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "CUDA_VISIBLE_DEVICES= shows no GPU"),
        ("-1", "CUDA_VISIBLE_DEVICES=-1 shows no GPU"),
        ("NoDevFiles", "CUDA_VISIBLE_DEVICES=NoDevFiles shows no GPU"),
        ("GPU-", "shows no GPU"),
        ("9" * 5000, "shows no GPU"),
        ("0,0", "names GPU 0 twice"),
        ("MIG-8a-cafe", "a MIG slice"),
    ],
)
def test_what_shows_no_certain_gpu_is_refused_with_the_reason(value: str, why: str) -> None:
    with pytest.raises(UnavailableError, match=why):
        shown(value)


def test_gpus_of_different_kinds_are_numbered_by_speed_unless_told_otherwise() -> None:
    for value in (None, "1"):
        with pytest.raises(UnavailableError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
            shown(value, MIXED)
        assert shown(value, MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID") == ([0, 1, 2] if value is None else [1])
    assert shown("GPU-2a,GPU-0a", MIXED) == [2, 0], "a UUID is no number"


@pytest.mark.parametrize(
    ("local_rank", "value", "indices"),
    [
        (0, None, [0]),
        (3, None, [3]),
        (1, "3,2", [2]),
        (3, "2", [2]),
        (None, "2", [2]),
        (None, "1,3", [1, 3]),
    ],
)
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one(
    local_rank: int | None, value: str | None, indices: list[int]
) -> None:
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert [gpu.index for gpu in gpus_of_rank(local_rank, FOUR, environ)] == indices


def test_a_rank_beyond_the_gpus_has_none() -> None:
    with pytest.raises(UnavailableError, match="local rank 4 has none of the 4 visible GPUs"):
        gpus_of_rank(4, FOUR, {})
    with pytest.raises(UnavailableError, match="NVML knows no GPU"):
        gpus_of_rank(0, (), {})
