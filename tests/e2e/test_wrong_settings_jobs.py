"""A job in which one rank has a wrong setting: one message that names it, exit code 2, at once."""

import pytest
from mpi_jobs import LIBRARIES, run_job, words_of_shardkit

SCRIPT = """
import shardkit as sk
backend = sk.MPICommunicationBackend()
odd = backend.rank == {odd}
made = {made}
config = sk.ShardingConfiguration(backend, **made)
sk.DDPModel(sk.models.MLP((3, {width})), config)
"""
WRONG = {
    "a setting": ("{'micro_batches': 0 if odd else 1}", "3", "micro_batches = 0"),
    "the rule": ("{'optimizer': sk.AdamW(lr=-1 if odd else 1)}", "3", "lr = -1"),
    "the model": ("{}", "-3 if odd else 3", "sizes[1] = -3"),
}


@pytest.mark.strength(1)
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_wrong_setting_on_one_rank_ends_the_job_with_its_name(library, name, odd, tmp_path):
    made, width, words = WRONG[name]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(odd=odd, made=made, width=width))
    done = run_job(library, script, num_ranks=2)
    said = words_of_shardkit(done)
    assert done.returncode == 2, done.stderr
    assert len(said) == 1 and words in said[0] and f"rank {odd}" in said[0], done.stderr


@pytest.mark.parametrize("library", LIBRARIES)
def test_settings_that_differ_are_named_with_their_values_and_ranks(library, tmp_path):
    script = tmp_path / "script.py"
    made = "{'optimizer': sk.AdamW(lr=1e-3 if odd else 1e-4)}"
    script.write_text(SCRIPT.format(odd=1, made=made, width="3"))
    done = run_job(library, script, num_ranks=2)
    (said,) = words_of_shardkit(done)
    assert done.returncode != 0
    assert "lr=0.001" in said and "on rank 1, but" in said and "lr=0.0001" in said
