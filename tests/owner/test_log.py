"""The owner's log: for the owner alone, from the first byte and after every rotation; and it never stops the daemon."""

import json
import os
import stat

import pytest

from prifedsync.owner.log import OwnerLog


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_the_file_is_private_from_its_first_byte(tmp_path, open_umask, monkeypatch):
    modes = []
    real = os.open

    def opened(path, flags, *more, **named):
        file = real(path, flags, *more, **named)
        modes.append(stat.S_IMODE(os.fstat(file).st_mode))
        return file

    monkeypatch.setattr(os, "open", opened)
    log = OwnerLog(tmp_path / "owner.log")
    log.info("begun")
    assert modes == [0o600]
    assert mode(tmp_path / "owner.log") == 0o600


def test_a_file_that_was_there_becomes_private(tmp_path):
    path = tmp_path / "owner.log"
    path.write_text("")
    path.chmod(0o644)
    OwnerLog(path)
    assert mode(path) == 0o600


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "target").touch()
    (tmp_path / "owner.log").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        OwnerLog(tmp_path / "owner.log")


def test_nothing_goes_to_the_terminal(tmp_path, capfd):
    log = OwnerLog(tmp_path / "owner.log")
    log.info("a cell is 42")
    try:
        raise ValueError("secret 4711")
    except ValueError:
        log.exception("a question failed")
    log.close()
    other = os.open(tmp_path / "other", os.O_CREAT | os.O_RDWR)  # takes the number of the log's file
    log.warning("after the end")  # a log that fails does not fail others
    assert log.lost == 1
    os.close(other)
    assert (tmp_path / "other").read_bytes() == b""
    assert capfd.readouterr() == ("", "")
    first, second = lines(tmp_path / "owner.log")
    assert first["text"] == "a cell is 42"
    assert "secret 4711" in second["traceback"]
    assert (first["level"], second["level"]) == ("info", "error")


def test_a_text_cannot_look_like_a_line_of_its_own(tmp_path):
    log = OwnerLog(tmp_path / "owner.log")
    log.info('x"}\n{"level": "info", "text": "all is well', by="\udcff\n")
    (only,) = lines(tmp_path / "owner.log")
    assert only["text"].startswith('x"}\n{')


def test_files_are_rotated_by_size_and_stay_private(tmp_path, open_umask):
    path = tmp_path / "owner.log"
    log = OwnerLog(path, most_bytes=400, kept=2)
    for number in range(40):
        log.info(f"line {number}")
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["owner.log", "owner.log.1", "owner.log.2"]
    assert all(each.stat().st_size <= 400 and mode(each) == 0o600 for each in files)
    texts = [line["text"] for each in (files[2], files[1], files[0]) for line in lines(each)]
    assert texts == [f"line {number}" for number in range(40 - len(texts), 40)]
    assert len(texts) > 6


def test_another_program_may_rotate_it(tmp_path):
    path = tmp_path / "owner.log"
    log = OwnerLog(path)
    log.info("before")
    path.rename(tmp_path / "moved")
    log.info("still there")
    log.reopen()
    log.info("after")
    assert [line["text"] for line in lines(tmp_path / "moved")] == ["before", "still there"]
    assert [line["text"] for line in lines(path)] == ["after"]
    assert mode(path) == 0o600


def test_a_full_disk_loses_lines_and_the_next_line_says_how_many(tmp_path, monkeypatch):
    log = OwnerLog(tmp_path / "owner.log")
    real = os.write

    def refused(file, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", refused)
    log.info("one")
    log.info("two")
    monkeypatch.setattr(os, "write", lambda file, content: real(file, content[:5]))  # the last block of the disk
    log.info("three")
    monkeypatch.setattr(os, "write", real)
    log.info("four")
    log.info("five")
    four, five = lines(tmp_path / "owner.log")
    assert four["lines lost before"] == 3
    assert "lines lost before" not in five
