"""`shardkit prepare` as an MPI job: killed, continued on another number of ranks, and its words."""

import json
import re
from pathlib import Path

import pytest
from e2e.mpi_jobs import run_job, words_of_shardkit

from shardkit.testing.data import open_token_file

KILLED = Path(__file__).with_name("preparing_rank.py")


def test_a_job_whose_rank_is_killed_goes_on_and_errors_are_one_sentence(tmp_path):
    documents = [f"document {number} " * 2000 for number in range(200)]  # 6 blocks of 1 MiB
    lines = [json.dumps({"body": document}) for document in documents]
    corpus, output = tmp_path / "a.jsonl", tmp_path / "tokens.h5"
    corpus.write_text("\n".join(lines))
    arguments = ["prepare", corpus, "--tokenizer=bytes", f"--output={output}"]
    killed = run_job("MPICH", KILLED, *arguments, "--field=body", num_ranks=3)
    assert killed.returncode != 0 and not output.exists()
    assert [*(tmp_path / "tokens.h5.parts").glob("*.part")]
    refused = run_job("MPICH", "-m", "shardkit", *arguments, num_ranks=2)
    assert refused.returncode == 2
    assert words_of_shardkit(refused) == [
        f"shardkit: CorpusError: {corpus} line 1 has no field 'text'; it has body (on all 2 ranks)"
    ]
    done = run_job("MPICH", "-m", "shardkit", *arguments, "--field=body", num_ranks=2)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert "parts were done before" in first
    assert last.startswith(f"{output}: {sum(map(len, documents)):,} tokens in 200 documents, in ")
    found = open_token_file(output)
    assert found.tokens.astype("u1").tobytes().decode() == "".join(documents)
    assert not (tmp_path / "tokens.h5.parts").exists()


@pytest.mark.parametrize(
    ("library", "how", "rank", "at", "num_ranks"),
    [
        ("MPICH", "stopped", 1, 30, 2),
        ("MPICH", "in a loop", 0, 1, 3),
        ("Open MPI", "stopped", 0, 5, 2),
        ("Open MPI", "killed", 2, 2, 3),
    ],
)
def test_a_rank_that_gets_nowhere_is_named_and_the_next_job_goes_on(
    tmp_path, library, how, rank, at, num_ranks
):
    corpus, output = tmp_path / "a.txt", tmp_path / "tokens.h5"
    corpus.write_text("some words of text\n" * 1_000_000)
    arguments = ["prepare", corpus, "--tokenizer=bytes", f"--output={output}"]
    struck = run_job(
        library,
        Path(__file__).with_name("struck_preparing_rank.py"),
        how,
        rank,
        at,
        *arguments,
        "--timeout=5",
        num_ranks=num_ranks,
        time_limit=500,
    )
    words = "\n".join(words_of_shardkit(struck))
    assert struck.returncode != 0 and re.search(rf"rank {rank} (is missing|got|died)", words), words
    assert not output.exists()
    done = run_job(library, "-m", "shardkit", *arguments, num_ranks=2, time_limit=500)
    assert done.returncode == 0, done.stderr
    assert open_token_file(output).tokens.size == corpus.stat().st_size
