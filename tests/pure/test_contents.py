"""Fingerprints are of every byte: a change anywhere is noticed, a copy or a touch is none."""

import os
import shutil
import time

import h5py
import numpy
import pytest
from table_files import ROWS, SUFFIXES, write
from table_files import rows as good_rows
from token_sources import FORMATS, documents, write_documents

from shardkit import ConfigurationError
from shardkit.testing.base import InputError
from shardkit.testing.data import (
    Contents,
    TableSamples,
    TextData,
    content_of,
    content_of_array,
    contents,
    find_corpora,
    open_table,
)
from shardkit.testing.task import ArraySamples

PLACES = {"first": 0, "second": 1, "middle": ROWS // 2 + 3, "last": ROWS - 1}


def rows(place=None):
    values = good_rows()
    if place is not None:
        values[PLACES[place], 1] = 7.0
    return values


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_one_number_of_a_table_changes_its_fingerprint_wherever_it_is(suffix, tmp_path):
    def fingerprint(name, values):
        write(tmp_path / f"{name}{suffix}", values)
        return TableSamples(open_table(tmp_path / f"{name}{suffix}")).fingerprint()

    found = [fingerprint("whole", rows()), *(fingerprint(p, rows(p)) for p in PLACES)]
    assert len(set(found)) == len(found)
    assert fingerprint("copy", rows()) == found[0]
    assert fingerprint("longer", numpy.concatenate([rows(), rows()[-1:]])) not in found
    assert fingerprint("shorter", rows()[:-1]) not in found


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.thorough
def test_one_token_changes_the_mark_wherever_it_is(name, tmp_path):
    """Over 256 KiB, of which a hash of some blocks saw little."""

    def fingerprint(folder, at=None):
        docs = [numpy.array(doc) for doc in documents(3000)]
        if at is not None:
            docs[at][-2] = docs[at][-2] % 26 + 97 + (docs[at][-2] % 26 + 97 == docs[at][-2])
        path = write_documents(tmp_path / folder, name, docs)
        how = {"token_dtype": "uint16"} if name == "nanogpt" else {}
        (corpus,), _ = find_corpora(TextData(path=(str(path),), **how))
        return corpus.whole().fingerprint()

    found = [fingerprint("whole"), *(fingerprint(f"{at}", at) for at in (0, 1111, 2222, 2999))]
    assert len(set(found)) == len(found)
    assert fingerprint("copy") == found[0]


class Indexed:
    """What is indexed like an array, and is none in memory."""

    def __init__(self, values):
        self.values, self.shape, self.dtype = values, values.shape, values.dtype
        self.read = 0

    def __len__(self):
        return len(self.values)

    def __getitem__(self, rows):
        self.read += self.values[rows].nbytes
        return self.values[rows]


@pytest.mark.parametrize("how", ["array", "view", "memmap", "dataset", "indexed", "a tree"])
def test_one_number_of_an_array_changes_its_fingerprint_wherever_it_is(how, tmp_path):
    def fingerprint(values):
        if how == "view":
            values = numpy.asfortranarray(values)
        if how == "memmap":
            numpy.save(tmp_path / "t.npy", values)
            values = numpy.load(tmp_path / "t.npy", mmap_mode="r")
        if how == "dataset":
            with h5py.File(tmp_path / "t.h5", "w") as file:
                file["x"] = values
                return ArraySamples(file["x"], numpy.zeros(ROWS)).fingerprint()
        if how == "indexed":
            values = Indexed(values)
        return ArraySamples({"a": values} if how == "a tree" else values, numpy.zeros(ROWS))

    def digest(values):
        found = fingerprint(values)
        return found if isinstance(found, str) else found.fingerprint()

    found = [digest(rows()), *(digest(rows(place)) for place in PLACES)]
    assert len(set(found)) == len(found) and digest(rows()) == found[0]


def test_of_a_large_array_on_disk_a_bounded_part_is_read_with_both_ends(monkeypatch):
    monkeypatch.setattr(contents, "_BLOCK_BYTES", 24 * 100)
    monkeypatch.setattr(contents, "_MOST_ARRAY_BYTES", 24 * 1000)
    values = Indexed(rows())
    whole = content_of_array(values)
    assert values.read == 24 * 1000
    for place in ("first", "last"):
        assert content_of_array(Indexed(rows(place))) != whole
    assert len({content_of_array(rows(place)) for place in PLACES}) == len(PLACES)  # in memory: all


def test_a_file_is_read_again_only_where_it_was_touched(tmp_path, monkeypatch):
    path = tmp_path / "t.bin"
    path.write_bytes(bytes(range(256)) * 1000)
    reads = []
    monkeypatch.setattr(
        contents, "content_of", lambda *paths, **how: reads.append(paths) or content_of(*paths)
    )
    monkeypatch.setattr(contents, "_SETTLED_SECONDS", 0)
    time.sleep(0.05)  # a file of this very moment would not be settled
    Contents().store(tmp_path)
    first = Contents.stored(tmp_path)
    digest = first.of(path)
    first.store(tmp_path)
    again = Contents.stored(tmp_path)
    assert again.of(path) == digest and len(reads) == 1
    shutil.copy(path, tmp_path / "copy")
    os.replace(tmp_path / "copy", path)
    again.check(path)  # another file of the same content
    assert len(reads) == 2
    about = path.stat()
    with open(path, "r+b") as file:
        file.seek(100_001)
        file.write(b"?")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # as if nothing had been
    with pytest.raises(InputError, match="t.bin is not what this run was trained on"):
        Contents.stored(tmp_path).check(path)


def test_a_file_written_a_moment_ago_is_read_again(tmp_path):
    """A later change may have the same time."""
    (tmp_path / "t.bin").write_bytes(b"abc")
    known = Contents()
    known.of(tmp_path / "t.bin")
    known.store(tmp_path)
    assert '[\nnull,\n"' in (tmp_path / "contents.json").read_text()


def test_holes_are_the_zeros_that_they_read_as(tmp_path):
    (tmp_path / "zeros").write_bytes(bytes(1 << 20) + b"1" + bytes(40 << 20))
    with open(tmp_path / "holes", "wb") as file:
        file.seek(1 << 20)
        file.write(b"1")
        file.truncate((41 << 20) + 1)
    assert content_of(tmp_path / "zeros") == content_of(tmp_path / "holes")
    assert os.stat(tmp_path / "holes").st_blocks < 1000


def test_a_table_that_changes_under_the_survey_is_refused(tmp_path):
    write(tmp_path / "t.csv", rows())
    table = open_table(tmp_path / "t.csv")
    write(tmp_path / "t.csv", rows("middle"))
    with pytest.raises(ConfigurationError, match="was changed while the ranks looked at it"):
        table.note_contents(Contents())


@pytest.mark.parametrize(
    "content", ['{"a": 1}', '{"a": [1, "x"]}', '{"a": [[1, 2, 3], "x"]}', '{"a": [null, 3]}', "[]"]
)
def test_a_damaged_list_of_contents_is_refused(content, tmp_path):
    (tmp_path / "contents.json").write_text(content)
    with pytest.raises(InputError, match="contents.json"):
        Contents.stored(tmp_path)
