"""Exit codes, as `shardkit --help` promises them: 0 done, 1 failed, 2 usage or configuration, 75
stopped and resumable.
"""

import pytest

import shardkit as sk
from shardkit.testing.base import errors
from shardkit.testing.cli import main

# in a folder with a checkpoint in `run`, one that is damaged in `broken`, nothing in `empty`, and
# settings in run.toml, prompts in prompts.txt
CODES = [
    (0, "--version"),
    (0, "--help"),
    (2, ""),
    (2, "trian"),
    (0, "inspect run"),
    (0, "inspect run --verify"),
    (1, "inspect broken --verify"),
    (1, "inspect nowhere"),
    (1, "inspect empty"),
    (2, "inspect"),
    (2, "inspect run other"),
    (2, "inspect run --nonsense"),
    (2, "inspect run --stages 3"),
    (2, "inspect run --run.steps=3"),
    (1, "inspect hang nowhere"),
    (0, "inspect schedule"),
    (2, "inspect schedule --order nope"),
    (2, "inspect schedule --stages 0"),
    (2, "inspect schedule --stages x"),
    (2, "inspect schedule --micro-batches -1"),
    (2, "inspect schedule --virtual 3"),
    (2, "inspect schedule --verify"),
    (1, "inspect schedule --svg nowhere/picture.svg"),
    (0, "diff run run"),
    (1, "diff run other"),
    (2, "diff run nowhere"),
    (2, "diff run broken"),
    (2, "diff run"),
    (2, "diff run run --tolerance -1"),
    (0, "convert --to safetensors run folder"),
    (1, "convert --to safetensors nowhere folder"),
    (1, "convert --to safetensors broken folder"),
    (1, "convert --to shardkit empty folder"),
    (2, "convert run folder"),
    (2, "convert --to pickle run folder"),
    (0, "generate run --tokens 2"),
    (1, "generate nowhere"),
    (1, "generate broken"),
    (2, "generate run --tokens -1"),
    (2, "generate run --temperature -1"),
    (2, "generate run --temperature warm"),
    (0, "generate run --tokens 2 --prompt-file prompts.txt --json"),
    (2, "generate run --prompt-file nowhere.txt"),
    (2, "generate run --prompt-file latin.txt"),
    (0, "generate run --tokens 2 --numbers --prompt 3,1"),
    (2, "generate run --numbers"),
    (2, "generate run --numbers --prompt 3,a"),
    (2, "generate run --numbers --prompt 3,256"),
    (2, "generate run --numbers --prompt 3 --stop x"),
    (2, "generate run --top-k 0"),
    (2, "generate run --top-p 1.5"),
    (1, "report nowhere"),
    (1, "report empty"),
    (2, "report"),
    (0, "plan run.toml cpu-node --devices 2"),
    (1, "plan huge.toml cpu-node --devices 1"),
    (2, "plan run.toml cpu-node"),
    (2, "plan run.toml cpu-node --devices 0"),
    (2, "plan nowhere.toml cpu-node --devices 2"),
    (2, "plan run.toml nowhere --devices 2"),
    (2, "plan run.toml cpu-node --devices 2 --software nope"),
    (2, "plan run.toml cpu-node --devices 2 --explain 99"),
    (2, "plan run.toml cpu-node --devices 2 --model.layer=3"),
    (2, "plan run.toml cpu-node --devices 2 --model.layers=x"),
    (2, "plan broken.toml cpu-node --devices 2"),
    (0, "render --template single_node --ranks-per-node 2"),
    (2, "render --template single_node"),
    (2, "render --template nope --ranks-per-node 2"),
    (2, "render --template multi_node --nodes 0 --ranks-per-node 2"),
    (2, "render --template multi_node --ranks-per-node 2 --time never"),
    (2, "render --template array --ranks-per-node 2"),
    (2, "render --template multi_node --ranks-per-node 2 --run.setps=3"),
    (1, "render --template multi_node --ranks-per-node 2 --output nowhere/job.sh"),
    (2, "bench --steps 0"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("codes")

    def save(backend, name, seed):
        model = sk.DDPModel(
            sk.models.GPT(256, 8, width=8, layers=1, heads=2, seed=seed),
            sk.ShardingConfiguration(backend),
        )
        return model.save_model(root / name / "checkpoints")

    for seed, name in enumerate(("run", "other", "broken")):
        sk.run_ranks(1, lambda backend: save(backend, name, seed))
    for path in (root / "broken").rglob("*.h5"):
        path.write_bytes(path.read_bytes()[:-7])
    (root / "empty").mkdir()
    (root / "run.toml").write_text("[model]\nwidth = 64\n")
    (root / "huge.toml").write_text("[model]\nwidth = 2097152\nlayers = 1\nheads = 8\n")
    (root / "broken.toml").write_text("[model\n")
    (root / "prompts.txt").write_text("one\ntwo\n")
    (root / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    return root


@pytest.mark.thorough(but=20)
@pytest.mark.parametrize(
    "code, arguments", CODES, ids=lambda given: given if isinstance(given, str) else str(given)
)
def test_a_command_ends_with_the_code_of_the_page_and_says_why_if_it_is_not_0(
    folder, code, arguments, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(folder)
    words = [str(tmp_path / word) if word == "folder" else word for word in arguments.split()]
    try:
        ended = main(words)
    except SystemExit as stop:  # argparse
        ended = stop.code
    said = capsys.readouterr()
    assert ended == code, said.err
    assert "Traceback" not in said.err and (code == 0) <= (said.err == "")
    assert (said.out + said.err).strip()


@pytest.mark.parametrize(
    "code, kind",
    [
        (1, errors.ShardkitError),
        (1, errors.CheckpointError),
        (1, errors.NonFiniteError),
        (1, errors.DeviceError),
        (1, errors.CommunicationError),
        (1, errors.OutOfMemoryError),
        (2, errors.ConfigurationError),
        (2, errors.MeshError),
        (2, errors.CorpusError),
        (2, errors.ScheduleError),
        (2, errors.StagesError),
        (75, errors.StopVoted),
    ],
)
def test_an_error_has_the_code_of_its_kind(code, kind):
    assert kind.exit_code == code


def test_help_says_what_the_codes_mean(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    for words in ("0 done", "1 failed", "2 usage or configuration", "75 stopped early"):
        assert words in said
