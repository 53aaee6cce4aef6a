"""Settings: where they come from, and what is refused."""

import dataclasses
import json
import math
import re
import typing

import numpy
import pytest

import shardkit as sk
from shardkit import ConfigurationError, ShardingConfiguration
from shardkit.testing.base import gpu_aware_mpi, launched_ranks, read_toml
from shardkit.testing.cli import configuration
from shardkit.testing.data import TextData
from shardkit.testing.layout import MeshShape
from shardkit.testing.nn import Model
from shardkit.testing.task import BUILT_IN, Language, load_task
from shardkit.testing.train import configuration_of, resumed, settled

RunConfiguration = configuration_of(Language)


def test_every_key_has_a_meaning_and_its_default_passes_its_own_check():
    for name, f in RunConfiguration.keys().items():
        assert f.metadata["text"], name
        assert RunConfiguration().replace({name: f.default}) == RunConfiguration()


@pytest.mark.parametrize(
    "unrelated",
    [
        "optimizer.xyz",
        "parallel.mpi_flavor",
        "run.colour",
        "zzz",
        "model.style.name.x",
    ],
)
def test_no_name_is_offered_for_a_key_that_is_near_none(unrelated):
    with pytest.raises(ConfigurationError) as caught:
        RunConfiguration().replace({unrelated: 1})
    assert "did you mean" not in str(caught.value) and "--help lists every key" in str(caught.value)


def test_help_names_every_key_with_its_default():
    text = RunConfiguration.help_text()
    lines = [line for line in text.splitlines() if line.startswith("  --")]
    assert sorted(line.split()[0][2:] for line in lines) == sorted(RunConfiguration.keys())
    assert any("run.steps" in line and "300 steps" in line for line in lines)


def test_help_lists_common_settings_first_and_the_others_under_their_section():
    common, *sections = configuration_of(Language).help_text().split("\n\n")
    assert common.startswith("common settings:\n  --run.folder ")
    for name in ("run.steps", "data.path", "model.width", "optimizer.learning_rate", "mesh.tensor"):
        assert f"--{name} " in common and not any(f"--{name} " in part for part in sections)
    for part in sections:
        heading, *lines = part.splitlines()
        name, meaning = heading[1:].split("]")
        assert lines and all(line.startswith(f"  --{name}.") for line in lines)
        assert meaning.strip().endswith(".") and "(" not in meaning.partition(" ")[0]


@pytest.mark.parametrize("task", BUILT_IN)
def test_printed_settings_are_a_file_that_reads_as_the_same_settings(task, tmp_path):
    configuration = configuration_of(load_task(task))
    given = {"run.folder": 'a "quoted" \\ fo\tlder \x7f', "optimizer.learning_rate": 1e-5}
    given |= {"run.keep_every": 4, "run.trace_steps": "2..3", "mesh.tensor": 2}
    settings = configuration().replace(given)
    (tmp_path / "run.toml").write_text(settings.toml_text(), encoding="utf-8")
    assert configuration().replace(read_toml(tmp_path / "run.toml")) == settings


@pytest.mark.parametrize(
    "wrong, nearest",
    [
        ("optimizer.learning_rat", "optimizer.learning_rate"),
        ("run.step", "run.steps"),
        ("model.layer", "model.layers"),
        ("layers", "model.layers"),
        ("optimiser.name", "optimizer.name"),
        ("run.layers", "model.layers"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(wrong, nearest):
    with pytest.raises(ConfigurationError, match=f"did you mean {nearest}"):
        RunConfiguration().replace({wrong: 1})


@pytest.mark.parametrize(
    "settings",
    [
        {"run.steps": "many"},
        {"run.steps": 1.5},
        {"run.steps": 0},
        {"model.style": "bert"},
        {"model.dropout": 1.0},
        {"data.validation_percent": 0.0},
        {"model.tied": 1},
        {"run.steps": True},
        {"optimizer.learning_rate": math.inf},
        {"optimizer.learning_rate": math.nan},
        {"optimizer.max_gradient_norm": math.inf},
        {"optimizer.weight_decay": math.nan},
        {"optimizer.beta2": math.nan},
        {"run.timeout": math.inf},
    ],
)
def test_a_value_of_wrong_type_or_range_is_refused_by_name(settings):
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        RunConfiguration().replace(settings)


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("run.steps", "20", 20),
        ("optimizer.learning_rate", "1e-3", 1e-3),
        ("optimizer.learning_rate", "1", 1),
        ("model.tied", "True", True),
        ("data.path", "a b.txt", ["a b.txt"]),
        ("data.path", '["a", "b"]', ["a", "b"]),
        ("sample.prompt", "12", "12"),
    ],
)
def test_overrides_take_the_type_of_their_key(name, text, value):
    assert RunConfiguration.parse(name, text) == value


def test_toml_tables_become_dotted_keys(tmp_path):
    (tmp_path / "run.toml").write_text('[model]\nwidth = 64\n[data]\npath = "text.txt"\n')
    settings = RunConfiguration().replace(read_toml(tmp_path / "run.toml"))
    assert settings.model.width == 64 and settings.data.path == ("text.txt",)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model.width"], "--model.width needs a value"),
        (["--model.width", "--run.steps=3"], "--model.width needs a value"),
        (["--run.steps=soon"], "run.steps"),
        (["model.width=3"], "unexpected argument 'model.width'"),
    ],
)
def test_words_that_are_no_settings_are_refused(words, message):
    with pytest.raises(ConfigurationError, match=message):
        configuration(None, words)


@pytest.mark.parametrize("text", ["width = 64", "[model\n", "[model]\nwidth = "])
def test_toml_that_cannot_be_used_is_refused_by_file_name(tmp_path, text):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigurationError, match="run.toml"):
        read_toml(tmp_path / "run.toml")
    with pytest.raises(ConfigurationError, match="missing.toml"):
        read_toml(tmp_path / "missing.toml")


@pytest.mark.parametrize(
    "variables, ranks",
    [
        ({}, None),
        ({"PMI_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, 2),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8"}, 8),
        ({"SLURM_STEP_NUM_TASKS": "8"}, None),
    ],
)
def test_the_launcher_says_how_many_ranks_it_started(monkeypatch, variables, ranks):
    for name in (
        "PMI_SIZE",
        "OMPI_COMM_WORLD_SIZE",
        "PMIX_SIZE",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched_ranks() == ranks


@pytest.mark.parametrize(
    "text, word", [(None, "probe"), ("", "probe"), ("NO", "no"), (" yes", "yes")]
)
def test_the_environment_says_whether_mpi_is_given_gpu_arrays(monkeypatch, text, word):
    monkeypatch.delenv("SHARDKIT_GPU_AWARE_MPI", raising=False)
    if text is not None:
        monkeypatch.setenv("SHARDKIT_GPU_AWARE_MPI", text)
    assert gpu_aware_mpi() == word


def test_a_wrong_word_about_gpu_arrays_is_refused(monkeypatch):
    monkeypatch.setenv("SHARDKIT_GPU_AWARE_MPI", "maybe")
    with pytest.raises(
        ConfigurationError, match="SHARDKIT_GPU_AWARE_MPI = 'maybe'; wanted probe, yes or no"
    ):
        gpu_aware_mpi()


def test_a_transport_that_does_not_exist_is_refused():
    with pytest.raises(
        ConfigurationError,
        match="gpu_transport = 'gloo'; wanted auto or staged or mpi or ipc or nccl",
    ):
        ShardingConfiguration(object(), gpu_transport="gloo")
    with pytest.raises(ConfigurationError, match="parallel.gpu_transport = 'gloo'"):
        RunConfiguration().replace({"parallel.gpu_transport": "gloo"})


NAN, INF = math.nan, math.inf
WRONG = {
    "learning_rate": (0, -1.0, NAN, INF, "0.1", True),
    "optimizer": ("adamant", sk.AdamW, 1e-3, {"name": "adam"}),
    "loss": ("mse", 3, sk.models.MLP),
    "max_gradient_norm": (0, -1.0, NAN, INF, "1", True),
    "auto_synchronize_gradients": (None, 1, "yes"),
    "minimum_parameter_group_size": (0, 2.5, True, "64", None),
    "gradient_compression": ("zip", True, ["float16"]),
    "shard_ranks": (0, 2.5, True, "2"),
    "domain_grid": (4, [], [2, 0], [1.5, 2], "22"),
    "domain_slabs": (0, 2.5, True, "4"),
    "frozen": ("embedding.*", 3, (1,), None),
    "parameter_groups": ("*.bias", ("*.bias",), None, {"*.bias": 0}),
    "micro_batches": (0, 2.5, 2.0, True, "2", None),
    "schedule": (None, 1, ["1f1b"]),
    "virtual_stages": (0, 1.5, True, "2"),
    "stage_balance": (None, 3, [], [1.0, NAN], [1.0, -1.0], ["compute"]),
    "blocks_per_stage": (2, [], [2, 0], [1.5, 1], "22"),
    "tensor_plan": ({}, "column", ["layers.0"]),
    "sequence_parallel": (None, 1, "auto"),
    "activation_checkpointing": (None, 1, "full"),
    "deterministic": (None, 0, "no"),
    "check": (1, "yes"),
    "device": ("tpu", 0, None, ["cpu"]),
    "residual_dtype": ("float64", 16, float),
    "compute_dtype": ("float64", 16, float),
    "initial_loss_scale": (0, 3, NAN, INF, True, "1024"),
    "loss_scale_interval": (0, 2.5, True, "10"),
    "matmul_precision": ("tf32", None, 32),
    "convolutions": ("winograd", None, 3),
    "blas": ("atlas", None, 1),
    "gpu_transport": ("gloo", None, 0),
    "overlap": (1, None, "yes"),
    "seed": ("x", None, 1.5, True),
}


@pytest.mark.parametrize(
    "name, value", [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_sharding_setting_of_the_wrong_kind_is_refused_by_name(name, value):
    with pytest.raises(ConfigurationError, match=f"^{name} = .*; wanted ") as caught:
        ShardingConfiguration(object(), **{name: value})
    assert repr(value) in str(caught.value)


def test_the_table_of_wrong_settings_has_every_setting():
    assert set(WRONG) == {field.name for field in dataclasses.fields(ShardingConfiguration)} - {
        "backend"
    }


@pytest.mark.parametrize("backend", [None, "world", sk.MPICommunicationBackend])
def test_what_is_no_backend_is_refused_with_an_example(backend):
    with pytest.raises(
        TypeError, match=r"needs a backend, for example MPICommunicationBackend\(\); got"
    ):
        ShardingConfiguration(backend)


@pytest.mark.parametrize(
    "settings",
    [
        {"micro_batches": numpy.int64(2)},
        {"learning_rate": numpy.float32(0.1)},
        {"blocks_per_stage": [2, 1]},
        {"domain_grid": [2, 1]},
        {"seed": -1},
        {"stage_balance": (1, 2.5)},
        {"loss": lambda prediction, y: prediction},
        {"optimizer": sk.SGD(lr=0.1)},
        {"initial_loss_scale": 0.5},
        {"schedule": "a name that the model's constructor looks up"},
    ],
)
def test_a_sharding_setting_of_the_right_kind_is_taken(settings):
    assert ShardingConfiguration(object(), **settings)


@pytest.mark.parametrize(
    "make, wrong",
    [
        (sk.models.MLP, {"seed": "x"}),
        (sk.models.MLP, {"seed": None}),
        (sk.models.MLP, {"seed": 1.5}),
        (sk.models.MLP, {"activation": ["gelu"]}),
        (sk.models.MLP, {"task": None}),
        (sk.models.GPT, {"seed": "x"}),
        (sk.models.GPT, {"seed": True}),
        (sk.models.GPT, {"tied": "no"}),
        (sk.models.GPT, {"style": ["llama"]}),
        (sk.models.GPT, {"norm_eps": "x"}),
        (sk.models.GPT, {"dropout": "x"}),
    ],
)
def test_a_model_refuses_an_argument_of_the_wrong_kind_by_name(make, wrong):
    right = (
        {"sizes": [4, 1]}
        if make is sk.models.MLP
        else {"vocabulary_size": 8, "sequence_length": 8, "width": 8, "layers": 1, "heads": 2}
    )
    name = "dropout with p" if "dropout" in wrong else next(iter(wrong))
    with pytest.raises(ConfigurationError, match=f"{name} = .*; wanted "):
        make(**right, **wrong)


@pytest.mark.parametrize(
    "sizes", [{"pipeline": 1.0}, {"tensor": True}, {"data": "2"}, {"pipeline": None}]
)
def test_sizes_of_a_mesh_are_integers(sizes):
    with pytest.raises(
        sk.MeshError, match=f"^{next(iter(sizes))} .* is not a size; it must be an integer"
    ):
        MeshShape.infer(4, **sizes)


@pytest.mark.parametrize(
    "name, value",
    [
        ("make_model", "a name"),
        ("work", None),
        ("every", 0),
        ("every", 2.5),
        ("timeout", 0),
        ("timeout", NAN),
        ("timeout", "10"),
    ],
)
def test_elastic_training_refuses_what_makes_no_sense_before_it_talks_to_others(name, value):
    given = {"make_model": lambda ranks: None, "work": lambda model, commit: None, name: value}
    with pytest.raises(ConfigurationError, match=f"^{name} = .*; wanted "):
        sk.ElasticTraining(**given)


FIXED = {
    "run.seed",
    "run.task",
    *(f"model.{f.name}" for f in dataclasses.fields(Model)),
    *(f"data.{f.name}" for f in dataclasses.fields(TextData)),
    "optimizer.name",
    "parallel.initial_loss_scale",
} - {"model.sequence_length", "model.dropout"}


def test_every_setting_declares_whether_a_run_that_goes_on_takes_it():
    fixed = {name for name, f in RunConfiguration.keys().items() if "fixed" in f.metadata}
    assert fixed == FIXED
    assert all(RunConfiguration.key(name).metadata["fixed"] for name in fixed)


def changed(name):
    """A value of this setting that is not its default."""
    f = RunConfiguration.key(name)
    names = f.metadata.get("among", f.metadata.get("known", ()))
    others = [value for value in names if value != f.default]
    if others:
        return others[0]
    if name == "run.trace_steps":
        return "2..3"
    kinds = [f.type] if typing.get_origin(f.type) is tuple else typing.get_args(f.type) or [f.type]
    by_type = {
        bool: not f.default,
        int: 7,
        float: 0.5,
        str: "another",
        tuple[int, ...]: (3,),
        tuple[str, ...]: ("3",),
        tuple[float, ...]: (0.5,),
    }
    return by_type[kinds[0]]


@pytest.mark.parametrize("name", RunConfiguration.keys())
def test_a_run_that_goes_on_takes_a_setting_or_refuses_it_with_both_values(name):
    stored, value = settled(RunConfiguration()), changed(name)
    assert resumed(stored, {name: stored.value(name)}) == stored
    if name not in FIXED:
        assert resumed(stored, {name: value}).value(name) == value
    else:
        with pytest.raises(ConfigurationError) as error:
            resumed(stored, {name: value})
        ours, theirs = (
            list(each) if isinstance(each, tuple) else each for each in (value, stored.value(name))
        )
        assert f"{name} = {ours!r}, but this run goes on with {theirs!r}: " in str(error.value)


def test_paths_are_the_same_setting_however_they_are_spelled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored = settled(RunConfiguration().replace({"data.path": "text.txt", "model.start": "start"}))
    assert stored.data.path == (str(tmp_path / "text.txt"),)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    resumed(stored, {"data.path": "../text.txt", "model.start": str(tmp_path / "start")})
    with pytest.raises(ConfigurationError, match="data.path"):
        resumed(stored, {"data.path": "text.txt"})


def test_no_decay_steps_means_the_steps_of_the_first_start_in_a_longer_run_too():
    stored = settled(RunConfiguration().replace({"run.steps": 40}))
    assert (
        resumed(stored, {"run.steps": 80, "optimizer.decay_steps": 0}).optimizer.decay_steps == 40
    )


@pytest.mark.parametrize(
    "name, spelled",
    [
        ("model.kv_heads", 0),
        ("model.norm_eps", 0.0),
        ("model.start", ""),
        ("optimizer.max_gradient_norm", 0),
        ("parallel.blocks_per_stage", []),
        ("parallel.domain_grid", []),
        ("parallel.virtual_stages", "none"),
        ("parallel.compute_dtype", "model"),
        ("parallel.gradient_compression", "none"),
        ("run.time_limit_seconds", 0.0),
    ],
)
def test_an_open_choice_is_none_however_a_file_spells_it(name, spelled):
    assert RunConfiguration().replace({name: spelled}).value(name) is None
    assert RunConfiguration().replace({name: None}).value(name) is None


def test_a_stored_configuration_is_read_back_equal():
    settings = settled(RunConfiguration().replace({"parallel.overlap": "on", "data.path": "a"}))
    stored = json.loads(json.dumps(settings.to_dict()))
    flat = {f"{section}.{key}": v for section, table in stored.items() for key, v in table.items()}
    assert RunConfiguration().replace(flat) == settings and settings.parallel.overlap is True


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(ShardingConfiguration)])
def test_the_help_of_the_configuration_names_every_setting(name):
    assert re.search(rf"^{name}\n    \S", ShardingConfiguration.__doc__, re.M)
