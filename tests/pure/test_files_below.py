"""What lies below a folder is all found, or an error: nothing is lost on the way."""

import pytest

from shardkit.testing.base import CorpusError, InputError
from shardkit.testing.data import find_inputs, open_table
from shardkit.testing.files import files_below


@pytest.fixture
def folder(tmp_path):
    """Files of text, in folders of which one is a link, and hidden ones."""
    for name in ("in/a.txt", "in/deep/b.txt", "in/.git/c.txt", "in/.d.txt", "out/e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"x,y\n{len(name)},2\n")
    (tmp_path / "in" / "more").symlink_to("../out")
    (tmp_path / "in" / ".lock").symlink_to("nobody@nowhere")  # as editors make them
    return tmp_path / "in"


def names(paths, folder):
    return [str(path.relative_to(folder)) for path in sorted(paths)]


def test_links_to_folders_are_followed_and_hidden_folders_are_not(folder):
    found = [".d.txt", ".lock", "a.txt", "deep/b.txt", "more/e.txt"]
    assert names(files_below(folder), folder) == found
    inputs = find_inputs([str(folder)])
    assert names([each.path for each in inputs], folder) == found[2:]
    pytest.importorskip("pyarrow")
    assert open_table(folder).begins[-1] == 3


WRONG = {
    "nowhere": ("lost.txt", "gone.txt", "lost.txt is a link to gone.txt, which is not there"),
    "round": ("deep/up", "..", "up is a link to a folder that it is in"),
    "round by another": ("../out/back", "../in", "back is a link to a folder that it is in"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_link_that_leads_nowhere_or_round_is_refused(case, folder):
    name, target, words = WRONG[case]
    (folder / name).symlink_to(target)
    with pytest.raises(InputError, match=words):
        list(files_below(folder))
    with pytest.raises(CorpusError, match=words):
        find_inputs([str(folder)])


def test_a_folder_that_may_not_be_read_is_an_error(folder, monkeypatch):
    import os

    scan = os.scandir

    def refuse(path):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(PermissionError, match="deep"):
        list(files_below(folder))
