"""`shardkit prepare` as an MPI job: killed, continued on another number of ranks, and its words."""

import json
from pathlib import Path

from e2e.mpi_jobs import run_job, words_of_shardkit

from shardkit.data.token_file import open_token_file

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
