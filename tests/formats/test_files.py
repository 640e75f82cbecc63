"""Which files are traces, and how much of them is read."""

import gzip
import os
import socket
import tracemalloc

import pytest

from overlaptop.formats import files
from overlaptop.formats.files import TraceError, find, read


def test_a_folder_holds_its_traces_by_name_and_nothing_else(tmp_path):
    for name in ("rank1.json.gz", "rank0.json", "notes.txt", ".hidden.json", "trace.gz", "a.pt.trace.json"):
        (tmp_path / name).write_text("{}")
    assert [path.name for path in find(tmp_path)] == ["a.pt.trace.json", "rank0.json", "rank1.json.gz"]


def test_a_folder_without_traces_or_with_too_many_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILES", 2)
    with pytest.raises(TraceError, match=r"no trace in this folder.*\*\.json"):
        find(tmp_path)
    for number in range(3):
        (tmp_path / f"{number}.json").write_text("{}")
    with pytest.raises(TraceError, match="3 traces in this folder; 2 at most"):
        find(tmp_path)


def test_gzip_is_known_by_its_content_whatever_its_name(tmp_path):
    path = tmp_path / "anything"
    path.write_bytes(gzip.compress(b'{"a": 1}') + b"\0\0")  # padded, as on a tape
    assert find(path) == [path]
    assert read(path) == b'{"a": 1}'


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    fifo, folder, listening = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json"
    os.mkfifo(fifo)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening))
        for path in (fifo, folder, listening, "/dev/zero", "/dev/tty"):
            with pytest.raises(TraceError, match="not a regular file"):
                read(files.Path(path))


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "a.json").symlink_to("b.json")
    (tmp_path / "b.json").symlink_to("a.json")
    for name, words in (
        ("missing.json", "no such file or folder"),
        ("a.json", "too many levels of symbolic links"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(TraceError, match=words):
            find(tmp_path / name)
    path = tmp_path / "trace.json"
    path.write_text("{}")

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.Path, "open", refused)  # root may read everything, and tests run as root
    with pytest.raises(TraceError, match=r"trace\.json: cannot be read \(permission denied\)"):
        read(path)


WHOLE = gzip.compress(b"{" + os.urandom(1000).hex().encode())
NO_OBJECT = "does not begin with a JSON object"
CUT_OFF = "cut off: it ends in the middle of the gzip stream"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", NO_OBJECT),
        (b" \n\t", NO_OBJECT),
        (gzip.compress(b""), NO_OBJECT),
        (WHOLE[:2], CUT_OFF),
        (WHOLE[:100], CUT_OFF),
        (WHOLE[:-1], CUT_OFF),
        (WHOLE[:-6] + bytes([WHOLE[-6] ^ 1]) + WHOLE[-5:], "not sound gzip"),
        (WHOLE + b"more", "not sound gzip"),
    ],
    ids=["nothing", "blanks", "nothing packed", "begun", "cut", "one byte short", "a flipped bit", "two"],
)
def test_what_is_no_whole_object_is_refused_as_such(tmp_path, content, words):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=words):
        read(path)


@pytest.mark.parametrize(
    ("begins", "words"),
    [
        (b"", NO_OBJECT),
        (b" " * (2 << 20), NO_OBJECT),
        (b" [1, 2]", NO_OBJECT),
        (b'{"traceEvents": [', "not JSON: only zeros from byte 17 on"),
    ],
    ids=["zeros", "blanks", "a list", "cut off by a crash"],
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_gigabyte_that_is_no_object_is_left_at_its_beginning(
    tmp_path, monkeypatch, begins, words, packed
):
    path = tmp_path / "trace.json"
    with (gzip.open if packed else open)(path, "wb") as file:
        file.write(begins)
        if packed:
            file.write(bytes(4 << 20))
    if not packed:
        os.truncate(path, files.MAX_TEXT_BYTES)
    tracemalloc.start()
    with pytest.raises(TraceError, match=words):
        read(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 16 << 20


@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_a_text_of_any_length_comes_back_whole(tmp_path, size):
    text = b" {" + os.urandom(size // 2).hex().encode()
    for content in (text, gzip.compress(text, 1)):
        (tmp_path / "trace.json").write_bytes(content)
        assert read(tmp_path / "trace.json") == text


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    sparse = tmp_path / "trace.json"
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TraceError, match="larger than 1 GiB unpacked"):
        read(sparse)
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 1000)
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(b"{" * 1001))
    with pytest.raises(TraceError, match="unpacked"):
        read(packed)
    packed.write_bytes(gzip.compress(b"{" * 1000))
    assert len(read(packed)) == 1000
