"""The agent's command line: what cannot be meant is one line, with status 2."""

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from overlaptop.agent.options import parse


def test_budget_is_a_share_of_the_jobs_time():
    for words in ("5%", "0.05"):
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
        ("--evry=2", "unrecognized arguments: --evry=2; did you mean --every?"),
        ("--nonsense", "unrecognized arguments: --nonsense"),
        (f"--record {__file__}", f"--record: it took {__file__}, a file, as its folder"),
    ],
)
def test_option_that_cannot_be_meant_is_a_usage_error(options, complaint, capsys):
    with pytest.raises(SystemExit) as ended:
        parse([*options.split(), "train.py"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_torchrun_ends_its_report_with_the_usage_error(tmp_path, monkeypatch, capsys):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit):
        parse(["--evry", "2", "train.py"])
    assert capsys.readouterr().err == "", "only the first rank of a node prints it"
    failure = ProcessFailure(local_rank=1, pid=1, exitcode=2, error_file=str(path))
    said = "python -m overlaptop.agent: error: unrecognized arguments: --evry; did you mean --every?"
    assert failure.message == said
