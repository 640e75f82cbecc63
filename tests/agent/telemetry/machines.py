"""GPUs as NVML shows them on machines of several kinds."""

import pynvml

from .driver import GPU_LINK, NOT_SUPPORTED, SWITCH_LINK, Driver, Gpu

GIB = 1 << 30


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-0000-0000-000000000000"


def h200_pair() -> Driver:
    """Two H200s of a virtual machine, 18 NVLinks each, all to switches.

    Addresses, links, speed, memory, limits, the path between the two and what is not supported were
    recorded there (driver 580); the metrics are ours, each known by heart.
    """
    gpm = {
        pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: 200_000.5,
        pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: 100_000.0,
        pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 20_000.0,
        pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: 10_000.25,
        pynvml.NVML_GPM_METRIC_SM_UTIL: 87.5,
        pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 50.0,
        pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 100.3,
    }
    in_kib = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)
    in_bytes = (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES)
    gpus = [
        Gpu(
            uuid(number),
            f"00000000:00:{slot}.0",
            nvlinks=dict.fromkeys(range(18), (SWITCH_LINK, "FFFFFFFF:FF:FF.0")),
            memory=(150_754_820_096, 1 << 30, 40 << 30),
            gpm=dict(gpm),
            counters=dict.fromkeys((*in_kib, *in_bytes), 0),
            short_counters=in_bytes,
        )
        for number, slot in ((1, "06"), (2, "07"))
    ]
    both = frozenset((uuid(1), uuid(2)))
    return Driver(*gpus, topology={both: pynvml.NVML_TOPOLOGY_HOSTBRIDGE})


def a100_bridge() -> Driver:
    """Two A100s for PCIe slots with bridges between them, and a third alone; no GPM."""
    addresses = ["00000000:01:00.0", "00000000:02:00.0", "00000000:81:00.0"]
    gpus = [
        Gpu(
            uuid(number + 1),
            address,
            "NVIDIA A100 80GB PCIe",
            (8, 0),
            places_for_nvlinks=12,
            nvlink_mbps=None,
            pcie=(1, 4, 16, 16),
            memory=(80 * GIB, GIB // 2, 10 * GIB),
            gpm=None,
            pcie_kbps=(1_500_000, 2_500_000),
            counters={
                pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: 1000,
                pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: 5000,
            },
        )
        for number, address in enumerate(addresses)
    ]
    gpus[0].nvlinks = dict.fromkeys(range(12), (GPU_LINK, addresses[1]))
    gpus[1].nvlinks = dict.fromkeys(range(12), (GPU_LINK, addresses[0]))
    near = frozenset((uuid(1), uuid(2)))
    return Driver(*gpus, topology={near: pynvml.NVML_TOPOLOGY_HOSTBRIDGE})


def l40() -> Driver:
    """One GPU without NVLink, whose driver is old: neither GPM nor the newer names."""
    gpu = Gpu(
        uuid(1),
        "00010000:41:00.0",
        "NVIDIA L40",
        (8, 9),
        places_for_nvlinks=0,
        pcie=(4, 4, 16, 16),
        gpm=None,
        pcie_kbps=(1000, 2000),
    )
    driver = Driver(gpu)
    driver.refuse = {
        "nvmlDeviceGetCurrentClocksEventReasons": 13,
        "nvmlDeviceGetMemoryInfo_v2": 13,
        "nvmlGpmQueryDeviceSupport": 13,
        "nvmlDeviceGetMemoryAffinity": NOT_SUPPORTED,
    }
    return driver
