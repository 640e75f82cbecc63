"""The agent's command line: what cannot be meant is one line, with status 2."""

import pytest

from overlaptop.agent.options import parse


@pytest.mark.parametrize("words", ["5%", "0.05"])
def test_a_budget_is_a_share_of_the_jobs_time(words):
    assert parse(["--budget", words, "train.py"]).options.budget == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("option", "words"),
    [("budget", words) for words in ("five", "%", "", "0%", "101%", "-1", "nan")]
    + [("keep", words) for words in ("0h", "2", "1TB", "-1h", "")],
)
def test_a_quantity_that_cannot_be_meant_is_a_usage_error(option, words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse([f"--{option}={words}", "train.py"])
    assert ended.value.code == 2
    assert option in capsys.readouterr().err.splitlines()[-1]
