"""A SLURM cluster of its own on this machine: one controller, some node daemons, munge, and nothing
of the system's.

    with SlurmCluster(num_nodes=2) as cluster:
        job = cluster.submit("job.sh", cwd=folder)
        cluster.wait(job, "COMPLETED")

Every daemon runs in the foreground as a child of this process and ends with it. Nodes differ in
name, port and one folder of their own, `memory`, where this machine lets us mount it; ranks on
different "nodes" share the cores and the host name of one machine.
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
SEARCH_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
START_SECONDS = 60
OWN_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"')
PR_SET_PDEATHSIG = 1
START_LIMIT = 30  # seconds that MPI_Init may take
# Over UCX, MPICH 5 publishes 4 KiB of memory per node, in lines of up to 1,100 bytes; SLURM 22.05
# reads 1,024 of a line and takes the rest for another request, so that MPI_Init fails or hangs.
# How long the lines are depends on what lies in the memory. Over libfabric a line has 65 bytes.
NETWORK = {"MPIR_CVAR_CH4_NETMOD": "ofi"}
CLEAR_SECONDS = 90
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")

CONFIGURATION = """
ClusterName=shardkit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# a job that was queued again may start once its old credentials have expired: not after two minutes
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
# no cgroups, no accounting, no binding: containers lack the one, tests do not need the others
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=100000
ReturnToService=2
KillWait=20
SlurmdParameters=config_overrides
NodeName=DEFAULT CPUs={cores} RealMemory=2000 State=UNKNOWN
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 DefaultTime=5 OverSubscribe=NO State=UP
"""


def why_not() -> str | None:
    """The reason why no cluster can be started here; None if it can."""
    missing = [name for name in NEEDED if shutil.which(name, path=SEARCH_PATH) is None]
    if missing:
        return (
            f"{', '.join(missing)} missing; apt-get install --no-install-recommends slurm-wlm munge"
        )
    return (
        None
        if os.geteuid() == 0
        else "SLURM's daemons are started as root here, and this is not root"
    )


class SlurmCluster:
    """See above. cores: of each node, as SLURM believes."""

    def __init__(self, num_nodes: int = 2, cores: int = 4):
        self._num_nodes, self._cores = num_nodes, cores
        self.folder = Path(
            tempfile.mkdtemp(prefix="slurm-", dir="/tmp")
        )  # short: paths of sockets are limited
        self._daemons: list[subprocess.Popen] = []
        self.memory = self.folder / "memory"
        self.memory.mkdir()
        self.has_own_memory = (
            subprocess.run([*OWN_MEMORY, self.memory, "true"], capture_output=True).returncode == 0
        )
        self._folders: set[Path] = set()  # where jobs since the last clear() write their *.out
        self._environment = {
            **os.environ,
            "PATH": SEARCH_PATH,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "SHARDKIT_START_SECONDS": str(START_LIMIT),
            **NETWORK,
        }

    # ---- life ------------------------------------------------------------------------------------

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        subprocess.run(
            ["scancel", "--full", "--user=root"],
            env=self._environment,
            capture_output=True,
            timeout=20,
        )
        deadline = time.monotonic() + 10
        while self._processes(of_jobs=True) and time.monotonic() < deadline:
            time.sleep(0.1)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
        for process in self._processes():
            os.kill(process, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self):
        folder, ports, host = (
            self.folder,
            _free_ports(self._num_nodes + 1),
            socket.gethostname().split(".")[0],
        )
        folder.chmod(0o755)
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        names = [f"node{number + 1}" for number in range(self._num_nodes)]
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
            for name, port in zip(names, ports[1:])
        )
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                folder=folder, host=host, controller_port=ports[0], cores=self._cores, nodes=nodes
            )
        )
        self._run_daemon(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={folder}/munge.key",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munge.pid",
            f"--log-file={folder}/munge.log",
            f"--seed-file={folder}/munge.seed",
        )
        self._wait_until(lambda: (folder / "munge.socket").exists(), "munged made its socket")
        self._run_daemon("slurmctld", "-D", "-c", "-i")
        for name in names:
            (folder / f"spool-{name}").mkdir()
            own = [*OWN_MEMORY, self.memory] if self.has_own_memory else []
            self._run_daemon("slurmd", "-D", "-N", name, inside=own)
        self._wait_until(
            lambda: (
                self._ask("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * self._num_nodes
            ),
            "all nodes were idle",
        )

    def _run_daemon(self, name, *arguments, inside=()):
        def end_with_the_parent():
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

        with open(self.folder / f"{name}-{len(self._daemons)}.out", "wb") as output:
            self._daemons.append(
                subprocess.Popen(
                    [*inside, shutil.which(name, path=SEARCH_PATH), *arguments],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    preexec_fn=end_with_the_parent,
                )
            )

    def _wait_until(self, is_true, what):
        deadline = time.monotonic() + START_SECONDS
        while not is_true():
            if time.monotonic() > deadline:
                logs = "\n".join(
                    path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.out")
                )
                raise RuntimeError(f"{START_SECONDS} s passed before {what}:\n{logs}")
            time.sleep(0.05)

    def _processes(self, of_jobs: bool = False) -> list[int]:
        """Processes of this cluster that still live, the daemons themselves excepted; only those of
        jobs.
        """
        mark, found = f"SLURM_CONF={self.folder}/slurm.conf".encode(), []
        known = {os.getpid(), *(daemon.pid for daemon in self._daemons)}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                variables = (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            is_of_job = any(variable.startswith(b"SLURM_JOB_ID=") for variable in variables)
            if mark in variables and int(path.name) not in known and (is_of_job or not of_jobs):
                found.append(int(path.name))
        return found

    # ---- jobs ------------------------------------------------------------------------------------

    def run(self, *command, cwd=None, seconds=90) -> subprocess.CompletedProcess:
        """A command of SLURM's, such as scancel; its output is captured."""
        return subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def _ask(self, *command) -> str:
        return self.run(*command).stdout

    def submit(self, script, *options, cwd) -> str:
        """The number of a new job."""
        done = self.run("sbatch", "--parsable", *options, script, cwd=cwd)
        assert done.returncode == 0, done.stderr
        self._folders.add(Path(cwd))
        return done.stdout.strip()

    def state(self, job) -> str:
        """PENDING, RUNNING, COMPLETED, ..."""
        return self.detail(job, "JobState")

    def detail(self, job, name) -> str:
        """One entry of `scontrol show job`."""
        return re.search(rf"\b{name}=(\S*)", self._ask("scontrol", "show", "job", "-o", job))[1]

    def wait(self, job, state, seconds=90) -> None:
        """Return when the job is in this state; fail if it ends in another, or the time is over."""

        def has_come():
            now = self.state(job)
            assert now == state or now not in ENDED, (
                f"job {job} is {now}, not {state}\n{self.output_of(job)}"
            )
            return now == state

        self.wait_until(
            has_come,
            seconds,
            lambda: f"job {job} is still {self.state(job)}\n{self.output_of(job)}",
        )

    def wait_until(self, holds, seconds=90, describe=None):
        """What holds() returns as soon as it is true. Errors: AssertionError when the time is
        over, with describe(), or else with all that is known of the jobs.
        """
        deadline = time.monotonic() + seconds
        while True:
            if result := holds():
                return result
            assert time.monotonic() < deadline, (
                f"nothing came of it within {seconds} s: {(describe or self._story)()}"
            )
            time.sleep(0.1)

    def _story(self) -> str:
        outputs = [
            f"{path.name}:\n{path.read_text(errors='replace')[-4000:]}"
            for folder in self._folders
            for path in sorted(folder.glob("*.out"))
        ]
        return "\n".join(
            [self._ask("scontrol", "show", "job", "-o"), self._ask("sinfo", "-N"), *outputs]
        )

    def clear(self) -> None:
        """End all jobs, whatever they do, and wait until the nodes are idle, so that the next test
        has them to itself.
        """
        self.run("scancel", "--user=root")
        self._folders.clear()
        self.wait_until(
            self._is_idle,
            CLEAR_SECONDS,
            lambda: self._ask("squeue") + self._ask("sinfo", "-N"),
        )

    def _is_idle(self) -> bool:
        """Kill what does not heed scancel, for which SLURM itself waits KillWait seconds; return
        True if nothing was left.
        """
        for process in self._processes(of_jobs=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return (
            self._ask("squeue", "-h") == ""
            and self._ask("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * self._num_nodes
        )

    def output_of(self, job) -> str:
        """What the job has printed so far."""
        path = Path(self.detail(job, "StdOut"))
        return path.read_text() if path.exists() else ""


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
