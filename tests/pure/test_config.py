"""Settings: where they come from, and what is refused."""
import pytest

from shardkit.config import (FIXED_IN_A_RUN, TAKEN_WHEN_A_RUN_GOES_ON, RunConfiguration, ShardingConfiguration,
                             configuration_keys, gpu_aware_mpi, help_text, launched_ranks, parse_override, read_toml, resumed,
                             settled)
from shardkit.errors import ConfigurationError


def test_every_key_has_a_meaning_and_its_default_passes_its_own_check():
    for name, (default, f) in configuration_keys().items():
        assert f.metadata["text"], name
        assert RunConfiguration().replace({name: default}) == RunConfiguration()


def test_help_names_every_key_with_its_default():
    lines = help_text().splitlines()
    assert len(lines) == len(configuration_keys())
    assert any("run.steps" in line and "300 steps" in line for line in lines)


@pytest.mark.parametrize("wrong, nearest", [("optimizer.learning_rat", "optimizer.learning_rate"), ("run.step", "run.steps"),
                                            ("model.layer", "model.layers"), ("layers", "model.layers")])
def test_an_unknown_key_is_refused_with_the_nearest_name(wrong, nearest):
    with pytest.raises(ConfigurationError, match=f"did you mean {nearest}"):
        RunConfiguration().replace({wrong: 1})


@pytest.mark.parametrize("settings", [{"run.steps": "many"}, {"run.steps": 1.5}, {"run.steps": 0}, {"model.style": "bert"},
                                      {"model.dropout": 1.0}, {"data.validation_percent": 0.0}, {"model.tied": 1},
                                      {"run.steps": True}])
def test_a_value_of_wrong_type_or_range_is_refused_by_name(settings):
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        RunConfiguration().replace(settings)


@pytest.mark.parametrize("name, text, value", [
    ("run.steps", "20", 20), ("optimizer.learning_rate", "1e-3", 1e-3), ("optimizer.learning_rate", "1", 1),
    ("model.tied", "True", True), ("data.path", "a b.txt", ["a b.txt"]), ("data.path", '["a", "b"]', ["a", "b"]),
    ("sample.prompt", "12", "12")])
def test_overrides_take_the_type_of_their_key(name, text, value):
    assert parse_override(name, text) == value


def test_toml_tables_become_dotted_keys(tmp_path):
    (tmp_path / "run.toml").write_text('[model]\nwidth = 64\n[data]\npath = "text.txt"\n')
    settings = RunConfiguration().replace(read_toml(tmp_path / "run.toml"))
    assert settings.model.width == 64 and settings.data.path == ["text.txt"]


@pytest.mark.parametrize("text", ["width = 64", "[model\n", "[model]\nwidth = "])
def test_toml_that_cannot_be_used_is_refused_by_file_name(tmp_path, text):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigurationError, match="run.toml"):
        read_toml(tmp_path / "run.toml")
    with pytest.raises(ConfigurationError, match="missing.toml"):
        read_toml(tmp_path / "missing.toml")


@pytest.mark.parametrize("variables, ranks", [({}, None), ({"PMI_SIZE": "4"}, 4), ({"OMPI_COMM_WORLD_SIZE": "2"}, 2),
                                              ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8"}, 8),
                                              ({"SLURM_STEP_NUM_TASKS": "8"}, None)])
def test_the_launcher_says_how_many_ranks_it_started(monkeypatch, variables, ranks):
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched_ranks() == ranks


@pytest.mark.parametrize("text, word", [(None, "probe"), ("", "probe"), ("NO", "no"), (" yes", "yes")])
def test_the_environment_says_whether_mpi_is_given_gpu_arrays(monkeypatch, text, word):
    monkeypatch.delenv("SHARDKIT_GPU_AWARE_MPI", raising=False)
    if text is not None:
        monkeypatch.setenv("SHARDKIT_GPU_AWARE_MPI", text)
    assert gpu_aware_mpi() == word


def test_a_wrong_word_about_gpu_arrays_is_refused(monkeypatch):
    monkeypatch.setenv("SHARDKIT_GPU_AWARE_MPI", "maybe")
    with pytest.raises(ConfigurationError, match="SHARDKIT_GPU_AWARE_MPI = 'maybe'; wanted probe, yes or no"):
        gpu_aware_mpi()


def test_a_transport_that_does_not_exist_is_refused():
    with pytest.raises(ConfigurationError, match="gpu_transport = 'gloo'; wanted staged or mpi or ipc or nccl"):
        ShardingConfiguration(object(), gpu_transport="gloo")
    with pytest.raises(ConfigurationError, match="parallel.gpu_transport = 'gloo'"):
        RunConfiguration().replace({"parallel.gpu_transport": "gloo"})


def test_every_setting_declares_whether_a_run_that_goes_on_takes_it():
    assert not TAKEN_WHEN_A_RUN_GOES_ON & FIXED_IN_A_RUN.keys()
    assert TAKEN_WHEN_A_RUN_GOES_ON | FIXED_IN_A_RUN.keys() == configuration_keys().keys()


def changed(name):
    """A value of this setting that is not its default."""
    default, f = configuration_keys()[name]
    if "among" in f.metadata:
        return next(value for value in f.metadata["among"] if value != default)
    by_type = {bool: not default, int: 7, float: 0.5, str: "another", list: [f.metadata.get("of", str)(3)]}
    return by_type[type(default)]


@pytest.mark.parametrize("name", configuration_keys())
def test_a_run_that_goes_on_takes_a_setting_or_refuses_it_with_both_values(name):
    stored, value = settled(RunConfiguration()), changed(name)
    assert resumed(stored, {name: stored.value(name)}) == stored
    if name in TAKEN_WHEN_A_RUN_GOES_ON:
        assert resumed(stored, {name: value}).value(name) == value
    else:
        with pytest.raises(ConfigurationError) as error:
            resumed(stored, {name: value})
        assert f"{name} = {value!r}, but this run goes on with {stored.value(name)!r}: " in str(error.value)


def test_paths_are_the_same_setting_however_they_are_spelled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored = settled(RunConfiguration().replace({"data.path": "text.txt", "model.initial": "start"}))
    assert stored.data.path == [str(tmp_path / "text.txt")]
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    resumed(stored, {"data.path": "../text.txt", "model.initial": str(tmp_path / "start")})
    with pytest.raises(ConfigurationError, match="data.path"):
        resumed(stored, {"data.path": "text.txt"})


def test_no_decay_steps_means_the_steps_of_the_first_start_in_a_longer_run_too():
    stored = settled(RunConfiguration().replace({"run.steps": 40}))
    assert resumed(stored, {"run.steps": 80, "optimizer.decay_steps": 0}).optimizer.decay_steps == 40
