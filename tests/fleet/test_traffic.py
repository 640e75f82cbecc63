"""What links carried beside what collectives account for, and why something of it is not known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.fleet import traffic
from overlaptop.fleet.traffic import WINDOW_S, StepWindow, traffic_of
from overlaptop.wire.devices import GpuLink, Unknown

from .builders import GB, MS, SWITCHED, T0, S, device, sample, step

PCIE = (GpuLink("pcie", "GPU-1", None, "NODE"),)


def window(*steps):
    made = StepWindow()
    for each in steps:
        made.add(each)
    return made


def steps_of(count, length_ms, link=None, *, first=0, **changes):
    """So many steps, one after the other, the last of which ends at T0; `link`: (tx, rx) of each."""
    tx, rx = link if link is not None else (None, None)
    return [
        step(
            0, first + number, start_ns=T0 - (count - number) * length_ms * MS, step_ns=length_ms * MS,
            link_tx_bytes=tx, link_rx_bytes=rx, **changes,
        )
        for number in range(count)
    ]  # fmt: skip


def seen(steps, samples=(), *, facts=None, gpus=("GPU-0", "GPU-1")):
    return traffic_of(facts or device(0), samples, [window(*steps)], gpus)


def collectives(found):
    return found.collectives_tx_bytes_per_s, found.collectives_rx_bytes_per_s


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 10**10)), min_size=1, max_size=60),
    st.integers(1, 7),
)
def test_rate_is_mean_bytes_of_named_steps_over_mean_length(lengths, every):
    at_ns, steps = T0 - sum(length for length, _ in lengths) * MS, []
    for number, (length, link) in enumerate(lengths):
        is_named = number % every == 0
        fields = {"link_tx_bytes": link, "link_rx_bytes": link} if is_named else {"comm_bytes": None}
        steps.append(step(0, number, start_ns=at_ns, step_ns=length * MS, **fields))
        at_ns += length * MS
    kept = [each for each in steps if each.start_ns + each.step_ns > T0 - WINDOW_S * S]
    named = [each.link_tx_bytes for each in steps if each.link_tx_bytes is not None]
    mean_s = sum(each.step_ns for each in kept) / len(kept) / 1e9
    tx, rx = collectives(seen(steps, [sample(0)]))
    assert tx == rx
    assert tx == pytest.approx(sum(named) / len(named) / mean_s, abs=1)


@pytest.mark.parametrize(
    ("step_ms", "window_s"), [(50, 10.0), (3000, 12.0), (7000, 14.0), (30_000, 30.0), (90_000, 60.0)]
)
def test_the_window_is_of_whole_steps(step_ms, window_s):
    assert seen(steps_of(4, step_ms), [sample(0)]).window_s == pytest.approx(window_s)


@pytest.mark.parametrize(
    ("steps", "at_s", "reason"),
    [
        ([], 0, traffic.NO_STEP),
        (steps_of(5, 50, comm_bytes=None), 0, traffic.UNNAMED),
        (steps_of(5, 50), 0, traffic.UNKNOWN_BYTES),
        (steps_of(5, 50, (GB, GB)), 3.5, traffic.LATE),
        (steps_of(5, 5000, (GB, GB)), 15.5, traffic.LATE),
    ],
    ids=["no step", "unnamed", "other nodes", "it hangs", "long steps hang"],
)
def test_why_bytes_of_collectives_are_unknown_is_said(steps, at_s, reason):
    found = seen(steps, [sample(0, at_s)])
    assert collectives(found) == (None, None)
    assert found.reason == reason
    assert found.tx_bytes_per_s == 20 * GB


def test_why_a_rate_cannot_be_measured_is_shown():
    unsampled = seen(steps_of(5, 50, (GB, GB)))
    assert (collectives(unsampled), unsampled.reason) == ((20 * GB, 20 * GB), traffic.NO_SAMPLES)
    reasons = (Unknown("power_mw", "no power"), Unknown("nvlink_rx_bytes_per_s", "no GPM on this GPU"))
    blind = sample(0, nvlink=(None, None), unknown=reasons)
    steps = steps_of(5, 50, (GB, GB))
    assert seen(steps, [blind]).reason == "no GPM on this GPU"
    assert seen(steps, [sample(0, nvlink=(None, GB))]).reason == traffic.NO_RATES
    assert seen([], [blind]).reason == f"no GPM on this GPU; {traffic.NO_STEP}"


@pytest.mark.parametrize(
    ("links", "over"),
    [
        (SWITCHED, "nvlink"),
        (PCIE, "pcie"),
        ((), "pcie"),
        ((*PCIE, GpuLink("nvlink", "GPU-9", 4, "")), "pcie"),
        ((*PCIE, *SWITCHED), "nvlink"),
        ((GpuLink("nvlink", "GPU-9", 4, ""),), "nvlink"),
    ],
)
def test_the_way_to_the_jobs_other_gpus_is_the_one_that_is_shown(links, over):
    found = seen(steps_of(5, 50, (GB, GB)), [sample(0, pcie=(3, 4))], facts=device(0, links=links))
    assert found.over == over
    assert found.rx_bytes_per_s == (20 * GB if over == "nvlink" else 3)
    assert collectives(found) == (20 * GB, 20 * GB)
    both = device(0, links=(GpuLink("nvlink", "GPU-1", 4, ""), *PCIE))
    unclear = seen(steps_of(5, 50, (GB, GB)), [sample(0)], facts=both)
    assert (collectives(unclear), unclear.reason) == ((None, None), traffic.BOTH_WAYS)
