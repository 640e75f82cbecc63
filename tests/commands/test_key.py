"""``overlaptop key``: writes a key once, and never prints it."""

from overlaptop.jobs.gather_key import key_path, read_key
from tests.commands.running import run_here


def test_a_key_is_written_once_and_never_printed(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    first = run_here("key")
    key = read_key()
    second = run_here("key")
    assert (first.returncode, first.stdout) == (0, "")
    words = (
        f"overlaptop: wrote {key_path()}; without a shared home, copy it to all nodes of the job: scp -p\n"
    )
    assert first.stderr == words
    assert second.returncode == 1
    assert second.stderr == f"overlaptop: {key_path()} exists: remove it first to replace the key\n"
    assert read_key() == key
    assert key.hex() not in first.stderr + second.stderr
