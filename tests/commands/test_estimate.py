"""``overlaptop estimate``: its answers, as a page and as a record, and the units it reads."""

from argparse import ArgumentTypeError

import pytest

from overlaptop.commands.quantities import bytes_per_s, duration_ns, milliseconds_ns, size_bytes
from overlaptop.models.buckets import MIB, Link, fewest, sweep

from .running import records, run_here

MS = 1_000_000
BUCKETS = "--gradients 1.6GB --bandwidth 200GB/s --latency 20us"


def ask(question: str) -> str:
    done = run_here("estimate", *question.split())
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def record(question: str) -> dict[str, object]:
    (found,) = records(ask(question + " --json"))
    return found


# What overlap brings


def test_a_step_is_compute_and_what_is_exposed():
    assert record("--compute-ms 40 --comm-ms 15 --overlap 0.9") == {
        "type": "estimate", "question": "overlap", "compute_ns": 40 * MS, "comm_ns": 15 * MS,
        "overlap": 0.9, "hidden_ns": 13_500_000, "exposed_ns": 1_500_000, "step_ns": 41_500_000,
        "speedup": 55 / 41.5, "attainable": 55 / 40, "least_step_ns": 40 * MS, "most_step_ns": 55 * MS,
    }  # fmt: skip
    assert ask("--compute-ms 40 --comm-ms 15ms --overlap 90%").splitlines() == [
        "                      step  overlap   hidden  exposed  speed-up",
        "nothing hidden     55.0 ms    0.0 %        0  15.0 ms     1.00×",
        "as given           41.5 ms   90.0 %  13.5 ms  1.50 ms     1.33×",
        "as much as can be  40.0 ms  100.0 %  15.0 ms        0     1.38×",
    ]


def test_without_an_overlap_only_the_two_ends_are_given():
    assert "as given" not in ask("--compute-ms 40 --comm-ms 15")
    found = record("--compute-ms 10 --comm-ms 15")
    assert (found["overlap"], found["step_ns"], found["speedup"]) == (None, None, None)
    assert (found["least_step_ns"], found["most_step_ns"]) == (15 * MS, 25 * MS)


def test_more_cannot_be_hidden_than_there_is_compute():
    assert record("--compute-ms 40 --comm-ms 150 --overlap 0.266")["step_ns"] < 151 * MS
    assert record("--compute-ms 0 --comm-ms 5 --overlap 0")["attainable"] == 1


# DDP's bucket size


def test_the_buckets_are_the_fewest_within_a_hundredth_of_the_best():
    found = record(f"{BUCKETS} --backward-ms 30 --ranks 8")
    link = Link(20_000, 200e9 / 1.75)
    every = list(sweep(1_600_000_000, 30 * MS, link, MIB))
    chosen = fewest(every, 30 * MS, 0.01)
    assert found["beta_bytes_per_s"] == pytest.approx(link.beta_bytes_per_s)
    assert (found["alpha_ns"], found["ranks"], found["backward_ns"]) == (20_000, 8, 30 * MS)
    assert (found["bucket_cap_mb"] * MIB, found["buckets"]) == (chosen.cap_bytes, chosen.count)
    assert (found["hidden_ns"], found["exposed_ns"]) == (chosen.hidden_ns, chosen.exposed_ns)
    assert found["least_exposed_ns"] == min(each.exposed_ns for each in every)


def test_the_table_has_the_chosen_size_the_default_and_one_bucket_for_all():
    question = f"{BUCKETS} --backward-ms 30 --ranks 8"
    found, page = record(question), ask(question)
    sizes = {row["bucket_cap_mb"]: row for row in found["sizes"]}
    assert {1, 25, found["bucket_cap_mb"], 1526} <= sizes.keys()
    assert list(sizes) == sorted(sizes)
    assert sizes[found["bucket_cap_mb"]] == {key: found[key] for key in sizes[25]}
    assert (sizes[1526]["buckets"], sizes[1526]["hidden_ns"]) == (1, 0)
    assert sizes[1526]["exposed_ns"] == 20_000 + 14 * MS
    (chosen,) = [line for line in page.splitlines() if line.endswith("<")]
    assert int(chosen.split()[0]) == found["bucket_cap_mb"]
    assert "20.0 µs + bytes / 114 GB/s (200 GB/s on the bus, 8 ranks)" in page
    assert f"\nbucket_cap_mb={found['bucket_cap_mb']}: {found['buckets']} buckets, " in page


def test_without_a_backward_what_is_exposed_is_not_known():
    found = record(BUCKETS)
    assert found["beta_bytes_per_s"] == 200e9
    assert (found["hidden_ns"], found["exposed_ns"], found["least_exposed_ns"]) == (None, None, None)
    assert {row["exposed_ns"] for row in found["sizes"]} == {None}
    # 20 us at 200 GB/s are 4 MB: nine times as much in a bucket makes latency a tenth of its time.
    assert found["bucket_cap_mb"] == -(-36_000_000 // (1 << 20)) == 35
    assert found["alpha_share"] <= 0.1
    assert "–" in ask(BUCKETS)


def test_communication_that_outlasts_backward_is_named():
    question = "--gradients 1.6GB --bandwidth 160Gbit/s --latency 20us --backward-ms 30"
    assert record(question)["exposed_ns"] > 50 * MS
    assert "Communication outlasts backward." in ask(question)


def test_the_smallest_and_the_largest_gradients_are_answered_as_well():
    found = record("--gradients 100kB --bandwidth 1GB/s --latency 0us --backward-ms 1")
    assert (found["bucket_cap_mb"], found["buckets"], found["alpha_share"]) == (1, 1, 0)
    assert [row["bucket_cap_mb"] for row in found["sizes"]] == [1]
    found = record("--gradients 8000TB --bandwidth 8000TB/s --latency 1us --backward-ms 30")
    assert found["buckets"] <= 100_000
    assert found["exposed_ns"] >= found["comm_ns"] - 30 * MS


# FSDP's prefetch depth


def test_the_depth_is_how_many_layers_the_slowest_all_gather_takes():
    assert record("--all-gather-ms 2 --layer-ms 5") == {
        "type": "estimate", "question": "prefetch", "all_gather_ns": 2 * MS, "layer_ns": 5 * MS,
        "slowest_all_gather_ns": None, "depth": 1, "exposed_ns": 0, "slowest_exposed_ns": None,
    }  # fmt: skip
    assert record("--all-gather-ms 2 --layer-ms 5 --slowest-all-gather-ms 11")["depth"] == 3
    assert ask("--all-gather-ms 2 --layer-ms 5").startswith("prefetch 1 layer ahead: ")
    assert ask("--all-gather-ms 2 --layer-ms 5 --slowest-all-gather-ms 11").startswith("prefetch 3 layers")


def test_where_no_depth_helps_the_answer_is_how_long_layers_wait():
    page = ask("--all-gather-ms 7 --layer-ms 5 --slowest-all-gather-ms 9")
    assert "each layer waits 2.00 ms at any depth, 4.00 ms at the slowest" in page
    assert record("--all-gather-ms 7 --layer-ms 5")["exposed_ns"] == 2 * MS


# Units

QUANTITIES = {
    size_bytes: {
        "1B": 1, "1.6GB": 1_600_000_000, "25MiB": 25 << 20, "0.5 KiB": 512, "3kB": 3_000, "3KB": 3_000,
        "1e3MB": 10**9, ".5TB": 5 * 10**11, "2PiB": 2 << 50,
    },
    bytes_per_s: {
        "200GB/s": 200e9, "1GiB/s": 2**30, "400Gbit/s": 50e9, "400Gb/s": 50e9, "100Mbps": 12.5e6, "8b/s": 1,
        "1.5TB/s": 1.5e12, "800 kbit/s": 100e3,
    },
    duration_ns: {
        "20us": 20_000, "20µs": 20_000, "20μs": 20_000, "0.02 ms": 20_000, "1s": 10**9, "7ns": 7, "0s": 0,
    },
    milliseconds_ns: {"20us": 20_000, "1.5": 1_500_000, "1s": 10**9},
}  # fmt: skip


@pytest.mark.parametrize(
    ("quantity", "text", "value"),
    [(quantity, *each) for quantity, texts in QUANTITIES.items() for each in texts.items()],
)
def test_quantities_are_read_by_their_unit(quantity, text, value):
    assert quantity(text) == pytest.approx(value, rel=1e-12)


NO_SIZES = ["", "GB", "1.6", "1.6gb", "1Gb", "1GB/s", "-1GB", "1,6GB", "0B", "9PiB", "1iB", "1e99GB",
            "nanB", "1 G B"]  # fmt: skip
NO_BANDWIDTHS = ["", "200", "200GB", "200gb/s", "0GB/s", "1e99GB/s", "GB/s", "1ib/s", "1b/h"]
NO_TIMES = ["", "ms", "1m", "1h", "-1ms", "1e99s", "1e7s", "inf", "1,5", "٣ms"]


@pytest.mark.parametrize(
    ("quantity", "texts"),
    [
        (size_bytes, NO_SIZES),
        (bytes_per_s, NO_BANDWIDTHS),
        (milliseconds_ns, NO_TIMES),
        (duration_ns, ["20"]),
    ],
)
def test_what_is_no_quantity_is_refused(quantity, texts):
    for text in texts:
        with pytest.raises(ArgumentTypeError):
            quantity(text)
