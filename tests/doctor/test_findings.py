"""Findings as records, and records of other hosts as findings."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.doctor.findings import Finding, Status, ok
from overlaptop.doctor.hosts import MAX_FINDINGS, read_records

TEXTS = st.text(min_size=1, max_size=40)
FINDINGS = st.builds(Finding, st.text(min_size=1, max_size=20), st.sampled_from(Status), TEXTS, TEXTS)


@given(st.lists(FINDINGS, max_size=5))
def test_a_record_is_read_as_what_was_written(findings: list[Finding]) -> None:
    text = "".join(json.dumps(finding.record("gpu-a")) + "\n" for finding in findings)
    assert read_records(f"a banner\n{text}") == findings


@given(st.text())
def test_whatever_another_host_prints_does_no_harm(text: str) -> None:
    assert len(read_records(text)) <= MAX_FINDINGS


@pytest.mark.parametrize(
    "line",
    [
        '{"type": "check", "check": "a", "status": "splendid", "finding": "b", "remedy": ""}',
        '{"type": "check", "check": "", "status": "ok", "finding": "b", "remedy": ""}',
        '{"type": "check", "check": "a", "status": ["ok"], "finding": "b", "remedy": ""}',
        '{"type": "doctor", "host": "", "works": true}',
        '{"type": "check"',
        "{" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_what_is_no_finding_is_passed_over(line: str) -> None:
    assert read_records(line) == []


def test_what_another_host_sends_is_bounded() -> None:
    line = json.dumps(ok("c" * 1000, "x" * 100_000).record("")) + "\n"
    found = read_records(line * 1000)
    assert len(found) == MAX_FINDINGS
    assert len(found[0].check) + len(found[0].text) < 1000
