"""``overlaptop exporter``: what it serves of a real job, to whom, and how it ends."""

import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from overlaptop.commands.exporter import FILE_NAME
from overlaptop.jobs.record import list_jobs
from tests.processes import eventually

from .conftest import StartRanks
from .running import OVERLAPTOP, SMALL_DDP, START_LIMIT_S, run_here


@contextmanager
def exporter(*words: object) -> Iterator[subprocess.Popen[str]]:
    command = [*OVERLAPTOP, "exporter", *map(str, words)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().removeprefix("overlaptop: ").strip()


def page(url: str, context: ssl.SSLContext | None = None) -> str:
    with urllib.request.urlopen(url, timeout=START_LIMIT_S, context=context) as answer:
        return answer.read().decode()


def test_jobs_come_and_go_while_it_serves(start_ranks: StartRanks, tmp_path: Path) -> None:
    folder = tmp_path / "textfile"
    folder.mkdir()
    with exporter("--port", 0, "--textfile", folder, "--every", 1, "--detail") as process:
        url = address(process)
        assert url.startswith("http://127.0.0.1:")
        assert "overlaptop_job_info" not in page(url)
        job = start_ranks(
            "faults", "--by", "sleep", "--share", "0.5", "--workload", f"ddp {' '.join(SMALL_DDP)}"
        )
        eventually(lambda: "overlaptop_rank_late{" in page(url), START_LIMIT_S)
        (record,) = list_jobs()
        late = f'overlaptop_rank_late{{job="{record.job}",node="{record.host}",rank="1"}} 1.0'
        eventually(lambda: late in page(url), START_LIMIT_S)
        eventually(lambda: late in (folder / FILE_NAME).read_text(), START_LIMIT_S)
        job.kill()
        up = f'overlaptop_job_up{{job="{record.job}"}}'
        eventually(lambda: f"{up} 0.0" in page(url), START_LIMIT_S)
        process.terminate()
        assert process.wait(START_LIMIT_S) == 0
    assert list(folder.iterdir()) == []


def test_tls_needs_the_certificate(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    with exporter("--port", 0, "--tls-cert", certificate, "--tls-key", key) as process:
        url = address(process)
        assert url.startswith("https://")
        assert page(url, ssl.create_default_context(cafile=certificate)) == ""
        with pytest.raises(OSError, match="certificate"):
            page(url, ssl.create_default_context())


def test_another_address_without_tls_is_pointed_out() -> None:
    with exporter("--port", 0, "--listen", "0.0.0.0") as process:
        assert "served without TLS" in address(process)


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (["--detail"], 2, "--port N or --textfile DIR"),
        (["--port", "0", "--tls-cert", "a.pem"], 2, "--tls-cert and --tls-key go together"),
        (["--port", "0", "--tls-cert", "/no/a", "--tls-key", "/no/b"], 1, "/no/a"),
        (["--port", "0", "--listen", "192.0.2.1"], 1, "192.0.2.1 port 0: "),
        (["--textfile", "/no/such"], 1, "--textfile /no/such: No such file or directory"),
    ],
)
def test_bad_requests_give_one_line(words: list[str], status: int, complaint: str) -> None:
    done = run_here("exporter", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    assert complaint in done.stderr
