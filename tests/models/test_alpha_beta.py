import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlaptop.formats.job import analyze
from overlaptop.models.alpha_beta import (
    FEWEST,
    NEWEST,
    AlphaBeta,
    Fit,
    NoFit,
    Observation,
    fit,
    fit_groups,
)
from overlaptop.timeline.lanes import LaneRules

DATA = Path(__file__).parent.parent / "formats" / "data"

MIB = 1 << 20
SIZES = np.array([1, 2, 8, 25, 25, 26, 31, 40, 40, 60, 80, 100]) * MIB


def observed(model, sizes, noise=0.0, seed=3):
    """What collectives of these sizes take, with noise that only makes them longer."""
    random = np.random.default_rng(seed)
    return model.duration_ns(sizes) * (1 + noise * random.exponential(size=len(sizes)))


@settings(deadline=None)
@given(st.floats(0, 1e7), st.floats(1e6, 1e12))
def test_without_noise_the_model_comes_back(alpha_ns, beta):
    model = AlphaBeta(alpha_ns, beta)
    found = fit(SIZES, SIZES / beta * 1e9 + alpha_ns)
    assert isinstance(found, Fit)
    assert found.model.duration_ns(SIZES) == pytest.approx(model.duration_ns(SIZES), rel=1e-6, abs=1)
    assert found.model.beta_bytes_per_s == pytest.approx(beta, rel=1e-3)
    assert found.residual == pytest.approx(0, abs=1e-9)
    assert found.worst_residual == pytest.approx(0, abs=1e-9)
    assert (found.observations, found.smallest_bytes, found.largest_bytes) == (12, MIB, 100 * MIB)


def test_noise_of_a_tenth_leaves_both_parameters_within_a_fifth_and_is_told_as_the_residual():
    model = AlphaBeta(200_000, 50e9)
    sizes = np.tile(SIZES, 30)
    found = fit(sizes, observed(model, sizes, noise=0.1))
    assert found.model.alpha_ns == pytest.approx(200_000, rel=0.2)
    assert found.model.beta_bytes_per_s == pytest.approx(50e9, rel=0.2)
    assert 0.02 < found.residual < 0.1
    assert found.worst_residual < 0.05


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(2, 1_000))
def test_a_quarter_of_the_collectives_of_each_size_may_be_stalled(seed, times):
    model = AlphaBeta(100_000, 20e9)
    sizes = np.repeat(SIZES[[0, 2, 3, 11]], 20)
    durations = observed(model, sizes, noise=0.02, seed=seed)
    # Of each size: where half of one are stalled, its median is, and nothing tells that from the link.
    places = np.tile(np.arange(20), (4, 1))
    stalled = np.random.default_rng(seed).permuted(places, axis=1) < 20 // 4
    durations[stalled.ravel()] *= times
    found = fit(sizes, durations)
    assert found.model.beta_bytes_per_s == pytest.approx(20e9, rel=0.15)
    assert found.model.alpha_ns == pytest.approx(100_000, rel=0.5)


def test_alpha_is_never_below_zero():
    # Times that grow faster than the sizes: a straight line would meet zero bytes below zero.
    found = fit(SIZES, (SIZES / MIB) ** 1.2 * 1_000)
    assert found.model.alpha_ns == 0
    assert 1_000 <= MIB / found.model.beta_bytes_per_s * 1e9 <= 100**0.2 * 1_000
    assert found.worst_residual > 0.3


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), max_size=40),
)
def test_whatever_was_seen_a_fit_is_within_its_bounds_and_the_rest_has_a_reason(pairs):
    found = fit([size for size, _ in pairs], [time for _, time in pairs])
    if isinstance(found, Fit):
        assert found.model.alpha_ns >= 0
        assert found.model.beta_bytes_per_s > 0
        assert found.worst_residual >= 0
    else:
        assert found.reason
        assert found.observations == len(pairs)


@settings(deadline=None)
@given(st.permutations(range(12)))
def test_the_order_of_what_was_seen_does_not_matter(order):
    sizes, times = SIZES[order], observed(AlphaBeta(1e5, 1e10), SIZES, noise=0.1)[order]
    assert fit(sizes, times) == fit(SIZES, observed(AlphaBeta(1e5, 1e10), SIZES, noise=0.1))


def test_one_size_gives_bounds_and_no_model():
    found = fit([25 * MIB] * 20, [1_000_000] * 20)
    assert isinstance(found, NoFit)
    assert found.reason == "all collectives have one size, 26214400 bytes"
    # All of it may be alpha; and the link cannot be slower than what was reached.
    assert found.alpha_at_most_ns == 1_000_000
    assert found.beta_at_least_bytes_per_s == 25 * MIB * 1_000


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(1e6, 1e12), st.floats(1, 1e9))
def test_the_bounds_of_one_size_hold_whatever_the_link_is(alpha_ns, beta, size):
    time_ns = alpha_ns + size / beta * 1e9
    found = fit([size] * FEWEST, [time_ns] * FEWEST)
    assert found.alpha_at_most_ns >= alpha_ns * (1 - 1e-9)
    assert found.beta_at_least_bytes_per_s <= beta * (1 + 1e-9)


def test_sizes_that_hardly_differ_are_refused():
    found = fit(np.arange(25, 35) * MIB, np.arange(25, 35) * 1_000)
    assert isinstance(found, NoFit)
    assert "the sizes are too alike, 26214400 to 35651584 bytes" in found.reason


def test_times_that_grow_by_chance_only_are_refused():
    random = np.random.default_rng(1)
    sizes = np.tile([1_000, 2_000, 4_000], 30)
    found = fit(sizes, 20_000 + random.normal(0, 1_000, len(sizes)))
    assert isinstance(found, NoFit)
    assert "do not grow with the size" in found.reason


@pytest.mark.parametrize(
    "sizes", [2.0 ** np.arange(16, 26), np.repeat([MIB, 25 * MIB], 5), [8_192] + [32 * MIB] * 24]
)
def test_errors_are_what_another_sample_would_differ_by(sizes):
    random = np.random.default_rng(7)
    sizes = np.asarray(sizes)
    fits = [
        fit(sizes, (100_000 + sizes / 50) * np.exp(random.normal(0, 0.1, len(sizes)))) for _ in range(300)
    ]
    near = [abs(each.model.beta_bytes_per_s / 50e9 - 1) < 2 * each.beta_error for each in fits]
    assert 0.8 < np.mean(near) < 0.99  # 95 % of normal noise, less for so few
    near = [abs(each.model.alpha_ns - 100_000) < 2 * each.alpha_error_ns for each in fits]
    assert 0.8 < np.mean(near) < 0.99
    flat = [fit(sizes, 100_000 * np.exp(random.normal(0, 0.1, len(sizes)))) for _ in range(300)]
    assert np.mean([isinstance(each, Fit) for each in flat]) < 0.05


def test_times_that_shrink_with_the_size_are_refused():
    assert "do not grow" in fit(SIZES, 1e9 / SIZES).reason


@pytest.mark.parametrize("seen", [0, 1, FEWEST - 1])
def test_too_few_are_refused(seen):
    found = fit(SIZES[:seen], SIZES[:seen])
    assert isinstance(found, NoFit)
    assert found.observations == seen
    assert found.alpha_at_most_ns == (MIB if seen else None)


def test_only_the_newest_are_looked_at():
    old, new = AlphaBeta(9e6, 1e8), AlphaBeta(1e5, 1e10)
    sizes = np.tile(SIZES, NEWEST // 12 + 1)
    found = fit(np.tile(sizes, 2), np.concatenate((old.duration_ns(sizes), new.duration_ns(sizes))))
    assert found.observations == NEWEST
    assert found.model.beta_bytes_per_s == pytest.approx(1e10, rel=1e-3)


@pytest.mark.parametrize(
    ("sizes", "times"),
    [([1, 2], [1]), ([[1]], [[1]]), ([0] * 9, [1] * 9), ([1] * 9, [0] * 9), ([1] * 9, [math.nan] * 9)],
)
def test_what_is_no_observation_is_refused(sizes, times):
    with pytest.raises(ValueError, match=r"as many times|above 0"):
        fit(sizes, times)


def test_each_op_and_group_has_a_model_from_its_shortest_durations():
    slow, fast = AlphaBeta(5e4, 1e9), AlphaBeta(1e4, 1e11)
    seen = []
    for nth, size in enumerate(SIZES.tolist()):
        waiting_ns = 10_000_000 * (1 + nth % 3)
        for op, group, model in (("allreduce_", "0", slow), ("allreduce_", "1", fast)):
            took_ns = int(model.duration_ns(size))
            seen.append(Observation(op, group, size, (took_ns + waiting_ns, took_ns)))
        seen.append(Observation("barrier", "0", 0, (500, 500)))
        seen.append(Observation("send", "0", size, ()))
    found = fit_groups(seen)
    assert set(found) == {("allreduce_", "0"), ("allreduce_", "1")}
    assert found["allreduce_", "0"].model.beta_bytes_per_s == pytest.approx(1e9, rel=1e-3)
    assert found["allreduce_", "1"].model.beta_bytes_per_s == pytest.approx(1e11, rel=1e-3)


@pytest.mark.parametrize("job", ["ddp_25mb", "ddp_straggler"])
def test_two_recorded_jobs_have_one_link_late_rank_or_not(job):
    # The same four GPUs, once with a rank that does extra work, for which the others wait, at times for
    # milliseconds. Each rank has as many all-reduces, in one order.
    traced = analyze(DATA / job, LaneRules(), detailed=True)
    ranks = [summary.details[-1].collectives for summary in traced.ranks]
    seen = [
        Observation(
            spans[0].op, spans[0].group, spans[0].bytes, tuple(s.end_ns - s.start_ns for s in spans)
        )
        for spans in zip(*ranks, strict=True)
    ]
    (found,) = fit_groups(seen).values()
    assert found.model.beta_bytes_per_s == pytest.approx(178e9, rel=0.03)
    assert found.model.alpha_ns == pytest.approx(10_000, rel=0.1)
    assert found.worst_residual < 0.05
    assert found.beta_error < 0.02
    # By a rank that waits the link would seem a third as fast.
    waiting = fit_groups(each._replace(durations_ns=each.durations_ns[:1]) for each in seen)
    assert all(isinstance(each, NoFit) or each.model.beta_bytes_per_s < 60e9 for each in waiting.values())


def test_the_time_is_alpha_and_bytes_over_beta():
    model = AlphaBeta(20_000, 100e9)
    assert model.duration_ns([0, 100, 1_000_000]).tolist() == [20_000, 20_001, 30_000]
    assert model.half_speed_bytes == 2_000_000
    assert int(model.duration_ns(2_000_000)) == 2 * 20_000
    assert int(AlphaBeta(5, math.inf).duration_ns(10**15)) == 5
    assert AlphaBeta(0, math.inf).half_speed_bytes == 0


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_is_as_nccl_tests_defines_it(ranks, factor):
    assert AlphaBeta.of_all_reduce(ranks, 0, 210e9).beta_bytes_per_s == pytest.approx(210e9 / factor)


def test_figures_out_of_range_are_refused():
    for alpha_ns, beta in ((-1, 1), (math.inf, 1), (math.nan, 1), (0, 0), (0, -1), (0, math.nan)):
        with pytest.raises(ValueError, match=r"alpha|beta"):
            AlphaBeta(alpha_ns, beta)
    with pytest.raises(ValueError, match="two ranks"):
        AlphaBeta.of_all_reduce(1, 0, 1e9)
    with pytest.raises(ValueError, match="cannot be -1 bytes"):
        AlphaBeta(0, 1).duration_ns([1, -1])
    for beta in (1e-3, 5e-324):
        with pytest.raises(ValueError, match="104 days"):
            AlphaBeta(0, beta).duration_ns(10**15)
