"""A script with sk.Training as an MPI job: told to stop, it saves and exits with 75; started again,
on other ranks, it goes on.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
SCRIPT = """
import os, signal, sys
import numpy
import shardkit as sk

class Stop(sk.Callback):
    def after_step(self, step, loss):
        if step == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGUSR1)

x = numpy.random.default_rng(0).normal(size=(40, 3)).astype("float32")
settings = {"run.steps": 6, "batch.sequences": 8, "batch.micro_batch": 2, "run.report_every": 1}
training = sk.Training(sk.models.MLP([3, 4, 1]), (x, x[:, :1]), folder="run", settings=settings,
                       callbacks=[Stop()])
result = training.run()
print("done at", result.steps, training.predict(x, "out.h5"))
"""


def start(folder, ranks, *arguments):
    return subprocess.run(
        [MPIEXEC, "-n", str(ranks), sys.executable, "script.py", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_script_that_is_told_to_stop_exits_with_75_and_goes_on_when_it_is_started_again(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    stopped = start(tmp_path, 2, "3")
    assert stopped.returncode == 75, stopped.stderr
    assert "SIGUSR1 on rank 0" in stopped.stdout and "done at" not in stopped.stdout
    done = start(tmp_path, 1, "0")
    assert done.returncode == 0, done.stderr
    assert "resumed at step 3" in done.stdout
    assert re.search(r"done at 6 \{'prediction': \(40, 1\)\}", done.stdout)
    assert (tmp_path / "out.h5").exists()


def test_an_error_of_a_script_s_settings_is_one_sentence_on_all_ranks(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.replace("run.report_every", "run.report_evry"))
    wrong = start(tmp_path, 2, "0")
    assert wrong.returncode == 2 and "did you mean run.report_every" in wrong.stderr
    assert wrong.stderr.count("did you mean") == 1 and "Traceback" not in wrong.stderr
    assert not (tmp_path / "run").exists()
