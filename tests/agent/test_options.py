"""The agent's command line: what cannot be meant is one line, with status 2."""

import pytest

from overlaptop.agent.options import parse


@pytest.mark.parametrize("words", ["5%", "0.05"])
def test_budget_is_a_share_of_the_jobs_time(words):
    assert parse(["--budget", words, "train.py"]).options.budget == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        *((f"--budget={words}", "budget") for words in ("five", "%", "0%", "101%", "nan")),
        *((f"--keep={words}", "keep") for words in ("0h", "2", "1TB", "-1h", "")),
        ("--every=0", "every must be from 1 to 1000000, not 0"),
        ("--lane=fast=x", "unknown lane 'fast'"),
        ("--source=kernels --phases-only", "phases alone are measured by"),
        ("--source=magic", "--source"),
    ],
)
def test_option_that_cannot_be_meant_is_a_usage_error(options, complaint, capsys):
    with pytest.raises(SystemExit) as ended:
        parse([*options.split(), "train.py"])
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err.splitlines()[-1]
