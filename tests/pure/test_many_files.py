"""Many files are read together: in order, each once, whatever a thread does."""

import threading
import time

import pytest

from shardkit.testing.comm import AT_ONCE, FILES_PER_THREAD, read_each


@pytest.mark.parametrize("num_paths", [0, 1, FILES_PER_THREAD, FILES_PER_THREAD + 1, AT_ONCE + 40])
def test_files_are_read_once_and_come_in_order(num_paths):
    reads = []
    found = [*read_each(lambda path: reads.append(path) or -path, [*range(num_paths)])]
    assert found == [-path for path in range(num_paths)]
    assert sorted(reads) == [*range(num_paths)]


def test_so_few_files_start_no_thread():
    threads = {*read_each(lambda path: threading.get_ident(), [*range(FILES_PER_THREAD)])}
    assert threads == {threading.get_ident()}


def test_threads_wait_together():
    began = time.monotonic()
    [*read_each(lambda path: time.sleep(0.02), [*range(8 * FILES_PER_THREAD)])]
    assert time.monotonic() - began < 0.75 * 8 * FILES_PER_THREAD * 0.02


def test_no_more_than_a_part_is_held():
    reads = []
    next(read_each(reads.append, [*range(3 * AT_ONCE)]))
    assert len(reads) == AT_ONCE


def test_what_a_thread_cannot_do_is_done_here(monkeypatch):
    """Threads that do not start, as at the end of an interpreter."""

    def refuse(thread):
        raise RuntimeError("can't start new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    paths = [*range(4 * FILES_PER_THREAD)]
    assert [*read_each(lambda path: path, paths)] == paths


def test_an_error_in_a_thread_is_raised_here_and_no_file_after_it_is_lost():
    def read(path):
        if path == 5:
            raise PermissionError(f"{path} is not yours")
        if path == 6 and threading.current_thread() is not threading.main_thread():
            raise OSError("only here for a while")
        return path

    each = read_each(read, [*range(4 * FILES_PER_THREAD)])
    assert [next(each) for _ in range(5)] == [*range(5)]
    with pytest.raises(PermissionError, match="5 is not yours"):
        next(each)
    rest = [path for path in range(4 * FILES_PER_THREAD) if path != 5]
    assert [*read_each(read, rest)] == rest
