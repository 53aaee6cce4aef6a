"""Training runs of `shardkit train` in this process: what a start and a resumed run take, keep and
refuse.
"""

import numpy
import pytest
from builders import TINY_RUN
from checkpoints import plain_gpt
from word_tokenizer import word_json

import shardkit as sk
from shardkit import ConfigurationError, DeviceError
from shardkit.testing.base import CorpusError
from shardkit.testing.checkpoint import compare, find_checkpoint, from_safetensors, to_safetensors
from shardkit.testing.data import ByteTokenizer, tokenizer_of
from shardkit.testing.parallel import parts_of
from shardkit.testing.task import Language, write_texts
from shardkit.testing.train import (
    TrainedRun,
    bits_text,
    configuration_of,
    evaluate,
    first_settings,
    resumed,
    stored_settings,
    train_run,
)

RunConfiguration = configuration_of(Language)


def with_initial_sizes(given):
    return first_settings(RunConfiguration, given)


SMALL = TINY_RUN


@pytest.fixture
def folder(tmp_path):
    for name in ("one.txt", "other.txt"):
        (tmp_path / name).write_text(
            "".join(f"{name}: line {i} with the number {i * i}\n" for i in range(60))
        )
    return tmp_path


def settings_of(folder, **changes):
    given = {"run.folder": str(folder / "run"), "data.path": [str(folder / "one.txt")]}
    return RunConfiguration().replace(
        {**SMALL, **given, **{name.replace("__", "."): value for name, value in changes.items()}}
    )


def run(settings, *, resume=False, num_ranks=1):
    return sk.run_ranks(num_ranks, lambda backend: train_run(settings, backend, resume=resume))[0]


def text_of(folder):
    return (folder / "run" / "data" / "index.json").read_text()


def failed_start(folder):
    """A first start that leaves an index of its text and no checkpoint."""
    with pytest.raises(DeviceError):
        run(settings_of(folder, parallel__device="cuda"))
    assert "one.txt" in text_of(folder)


def test_a_start_reads_the_text_that_it_is_given_though_one_before_left_another(folder):
    failed_start(folder)
    run(settings_of(folder, data__path=[str(folder / "other.txt")]))
    assert "other.txt" in text_of(folder) and "one.txt" not in text_of(folder)


def test_a_path_that_is_not_there_is_refused_though_a_start_before_left_a_text(folder):
    failed_start(folder)
    with pytest.raises(CorpusError, match="nonexistent does not exist"):
        run(settings_of(folder, data__path=["/nonexistent"]))


REFUSED = {
    "an empty text": ({"data.path": ["empty.txt"]}, "no text"),
    "more stages than units": (
        {"parallel.schedule": "interleaved", "parallel.virtual_stages": 50},
        "at least 50 units",
    ),
    "a stage that cuts a unit": (
        {
            "parallel.blocks_per_stage": [2, 1],
            "mesh.pipeline": 2,
            "parallel.minimum_parameter_group_size": 1500,
        },
        "inside a unit of merged",
    ),
    "a batch that does not divide": ({"batch.sequences": 6}, "does not divide"),
    "heads that do not divide the width": ({"model.heads": 3}, "heads"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_is_refused_on_all_ranks_before_there_is_a_checkpoint(
    folder, case, monkeypatch
):
    monkeypatch.chdir(folder)
    (folder / "empty.txt").write_text("")
    changes, words = REFUSED[case]
    seen = []

    def on_rank(backend):
        with pytest.raises(sk.ShardkitError, match=words) as caught:
            train_run(settings_of(folder).replace(changes), backend)
        seen.append(caught.value.exit_code)

    sk.run_ranks(2, on_rank)
    assert seen == [2, 2]
    assert not list(folder.rglob("*.tmp")) and not list(folder.rglob("checkpoints"))


def test_a_text_is_shown_while_it_is_generated():
    def on_rank(backend):
        config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=0.1))
        model = sk.HybridShardedModel(sk.models.GPT(256, 8, width=8, layers=2, heads=2), config, 2)
        pieces = []
        show = pieces.append if backend.rank == 0 else None
        (text,) = write_texts(model, ByteTokenizer(), ["def "], 20, stop=["\n"], show=show)
        return text, pieces

    texts, pieces = zip(*sk.run_ranks(4, on_rank))
    assert len(set(texts)) == 1 and not any(pieces[1:])
    assert "".join(pieces[0]) == texts[0].removeprefix("def ") and len(pieces[0]) > 3


def test_text_is_generated_by_the_tokenizer_of_the_model():
    def generated(num_tokens, tokenizer, prompt, stop=()):
        def on_rank(backend):
            config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=0.1))
            model = sk.FSDPModel(sk.models.GPT(num_tokens, 8, width=8, layers=1, heads=2), config)
            return write_texts(model, tokenizer, [prompt], 3, temperature=0.0, stop=stop)[0]

        one, other = sk.run_ranks(2, on_rank)
        assert one == other
        return one

    with pytest.raises(ConfigurationError, match=r"this model has 5,003 tokens.* tokenizer"):
        generated(5003, ByteTokenizer(), "def ")
    assert generated(256, ByteTokenizer(), "def ").startswith("def ")
    whole = generated(256, ByteTokenizer(), "")
    assert len(whole) == 3
    assert generated(256, ByteTokenizer(), "", [whole[1]]) == whole[: whole.index(whole[1])]
    assert generated(256, ByteTokenizer(), "", [whole[1:]]) == whole[: whole.index(whole[1:])]
    with pytest.raises(ConfigurationError, match="a stop text is empty"):
        generated(256, ByteTokenizer(), "", [""])
    pytest.importorskip("tokenizers")
    words = tokenizer_of({"tokenizer.json": word_json()})
    assert set(generated(12, words, "a b").split()) <= {"a", "b", "?", "<|endoftext|>"}
    assert generated(12, words, "  a") != generated(12, words, "")
    with pytest.raises(ConfigurationError, match="has 10 tokens, but the model has 9"):
        generated(9, words, "a b")


# ---- a run that goes on --------------------------------------------------------------------------

READ_ELSEWHERE = {
    "run.elastic",
    "run.elastic_every",
}  # the command chooses SurvivingRun by the one, which reads the other


def test_what_a_resumed_run_takes_is_read_when_it_goes_on(folder, monkeypatch):
    run(settings_of(folder))
    run(settings_of(folder, optimizer__name="momentum", run__folder=str(folder / "momentum")))
    read = set()
    for name, section in vars(RunConfiguration()).items():
        monkeypatch.setattr(
            type(section),
            "__getattribute__",
            lambda self, key, name=name: (
                read.add(f"{name}.{key}"),
                object.__getattribute__(self, key),
            )[1],
        )
    monkeypatch.setattr(
        "shardkit.testing.train.loop.settled", lambda settings: settings
    )  # these two read everything
    monkeypatch.setattr("shardkit.testing.train.loop.store_settings", lambda folder, settings: None)
    for run_name in ("run", "momentum"):
        given = {"run.folder": str(folder / run_name), "run.steps": 4, "sample.tokens": 2}
        settings = resumed(stored_settings(folder / run_name), given)
        read.clear()
        run(settings, resume=True)
        known = {key for key, f in RunConfiguration.keys().items() if "fixed" not in f.metadata}
        known -= READ_ELSEWHERE
        known -= (
            {"optimizer.momentum"} if run_name == "run" else {"optimizer.beta1", "optimizer.beta2"}
        )
        assert not known - read


def test_a_resumed_run_trains_with_the_values_that_it_was_given(folder):
    run(settings_of(folder))
    given = {
        "optimizer.learning_rate": 0.5,
        "optimizer.decay": "constant",
        "run.steps": 3,
        "run.report_every": 1,
    }
    run(resumed(stored_settings(folder / "run"), given), resume=True)
    records = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    assert any('"step": 3' in record and '"learning_rate": 0.5' in record for record in records)
    assert stored_settings(folder / "run").optimizer.learning_rate == 0.5


@pytest.mark.parametrize("change", ["cannot be read", "is not what this run was trained on"])
def test_a_run_does_not_go_on_with_a_text_that_changed_on_disk(folder, change):
    run(settings_of(folder))
    before = text_of(folder)
    (folder / "one.txt").rename(folder / "moved")
    if "not what" in change:
        (folder / "one.txt").write_text("another text\n" * 100)
    with pytest.raises(CorpusError, match=f"one.txt.* {change}"):
        run(resumed(stored_settings(folder / "run"), {"run.steps": 3}), resume=True)
    (folder / "moved").replace(folder / "one.txt")
    run(resumed(stored_settings(folder / "run"), {"run.steps": 3}), resume=True)
    assert text_of(folder) == before


def test_settings_that_are_refused_are_not_those_that_the_next_resume_finds(folder):
    run(settings_of(folder))
    with pytest.raises(DeviceError):
        run(
            resumed(stored_settings(folder / "run"), {"parallel.device": "cuda", "run.steps": 3}),
            resume=True,
        )
    assert stored_settings(folder / "run").parallel.device == "cpu"


# ---- a run that begins with the weights of a checkpoint ------------------------------------------


def are_equal(first, second):
    found = [find_checkpoint(path)[0] for path in (first, second)]
    return compare(*found, tolerance=0.0, model_only=True).is_equal


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_run_begins_with_the_weights_and_sizes_of_another(folder, num_ranks):
    run(
        settings_of(
            folder,
            model__kv_heads=1,
            model__hidden=12,
            model__norm_eps=1e-4,
            model__rotary_base=500.0,
        )
    )
    given = {
        "model.start": str(folder / "run"),
        "run.folder": str(folder / "next"),
        "data.path": [str(folder / "other.txt")],
        "optimizer.name": "sgd",
        "optimizer.learning_rate": 1e-30,
        "optimizer.weight_decay": 0.0,
        **{name: value for name, value in SMALL.items() if not name.startswith("model.")},
    }
    run(with_initial_sizes(given), num_ranks=num_ranks)
    assert are_equal(folder / "run", folder / "next")
    first, second = (plain_gpt(folder / name).settings for name in ("run", "next"))
    assert (
        first == second
        and first.hidden == 12
        and first.norm_eps == 1e-4
        and first.rotary_base == 500.0
    )
    manifest = find_checkpoint(folder / "next")[0].manifest
    assert manifest["step"] == 2 and manifest["optimizer"]["rule"] == "SGD"


def test_sizes_that_contradict_the_initial_weights_are_refused_with_both_values(folder):
    run(settings_of(folder))
    with pytest.raises(ConfigurationError, match="model.width = 128, but the model in .* has 8"):
        with_initial_sizes({"model.start": str(folder / "run"), "model.width": 128})
    assert (
        with_initial_sizes({"model.start": str(folder / "run"), "model.dropout": 0.5}).model.dropout
        == 0.5
    )


def converted(folder, vocabulary):
    """A folder of checkpoints as `shardkit convert` writes them: step 0, without optimizer
    state.
    """

    def save(backend):
        gpt = sk.models.GPT(vocabulary, 8, width=8, layers=1, heads=2, style="llama", seed=5)
        model = sk.DDPModel(gpt, sk.ShardingConfiguration(backend))
        model.save_model(folder / "first")

    sk.run_ranks(1, save)
    to_safetensors(folder / "first", folder / "theirs")
    from_safetensors(folder / "theirs", folder / "start")
    return folder / "start"


@pytest.mark.parametrize("start", ["start", "theirs"])
def test_a_model_of_transformers_is_trained_on(start, folder):
    given = {
        **{name: value for name, value in SMALL.items() if not name.startswith("model.")},
        "data.path": [str(folder / "one.txt")],
        "run.folder": str(folder / "run"),
        "optimizer.learning_rate": 1e-30,
        "optimizer.weight_decay": 0.0,
        "model.start": str(converted(folder, 256).with_name(start)),
    }
    run(with_initial_sizes(given))
    assert are_equal(folder / "start", folder / "run")
    run(resumed(stored_settings(folder / "run"), {"run.steps": 3}), resume=True)


def test_a_model_of_other_tokens_is_not_trained_on_bytes(folder):
    given = {"model.start": str(converted(folder, 300)), "data.path": [str(folder / "one.txt")]}
    settings = with_initial_sizes({**given, "run.folder": str(folder / "run")})
    assert settings.model.vocabulary_size == 300
    with pytest.raises(ConfigurationError, match="knows 300 tokens.*shardkit prepare"):
        run(settings)


def test_learned_positions_keep_their_number_and_rotary_ones_do_not(folder):
    given = {"model.start": str(converted(folder, 256)), "model.sequence_length": 4}
    assert with_initial_sizes(given).model.sequence_length == 4
    run(settings_of(folder, model__style="gpt2"))
    given["model.start"] = str(folder / "run")
    with pytest.raises(ConfigurationError, match="model.sequence_length = 4, but .* has 8"):
        with_initial_sizes(given)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("place", ["run", "run/checkpoints"])
def test_a_folder_of_weights_alone_is_no_run_and_says_how_to_begin_with_them(folder, place, resume):
    (folder / "run").mkdir()
    converted(folder, 256).rename(folder / place)
    with pytest.raises(
        ConfigurationError,
        match=r"holds checkpoints and no run.*--model.start=\S+/run --run.folder=ANOTHER",
    ):
        stored_settings(folder / "run") if resume else run(settings_of(folder))


# ---- whose bits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sequences, num_ranks, words",
    [
        (8, 1, "bits as on any data x pipeline mesh"),
        (12, 1, "bits as on any data x pipeline mesh"),
        (12, 3, "bits as on any data x pipeline mesh"),
        (12, 2, "bits of 2 data ranks only: 3 micro-batches per rank are no power of two"),
    ],
)
@pytest.mark.thorough(but=2)
def test_the_log_says_whether_the_bits_are_those_of_any_mesh_and_that_is_so(
    folder, sequences, num_ranks, words, capsys
):
    for name, num in (("one", 1), ("several", num_ranks)):
        run(
            settings_of(
                folder, run__folder=str(folder / name), batch__sequences=sequences, run__steps=5
            ),
            num_ranks=num,
        )
    assert (
        f"; {words}; run folder"
        in capsys.readouterr().out.replace("\n", " ").rpartition("parameters as")[2]
    )
    assert are_equal(folder / "one", folder / "several") == ("any" in words)


@pytest.mark.parametrize(
    "settings, num_ranks, words",
    [
        ({"parallel.deterministic": False}, 2, "bits of this run only"),
        (
            {"parallel.gradient_compression": "float16"},
            2,
            "bits of 2 data ranks only: gradients travel as float16",
        ),
        ({"mesh.tensor": 2}, 4, "bits as on any data x pipeline mesh with tensor 2"),
        ({"mesh.domain": 3}, 6, "bits as on any data x pipeline mesh with domain 3"),
        ({"mesh.domain": 2, "batch.sequences": 48}, 6, "bits of 3 data ranks only: 3 of them x"),
        (
            {"mesh.tensor": 2, "parallel.sequence_parallel": True},
            2,
            "with tensor 2 and sequence_parallel",
        ),
    ],
)
def test_what_else_changes_the_bits_is_said_too(settings, num_ranks, words):
    assert words in bits_text(RunConfiguration().replace(settings), num_ranks)


@pytest.mark.parametrize(
    "groups, given, num_ranks, sharing",
    [
        (2, {}, 2, 2),
        (2, {}, 4, 2),
        (2, {}, 3, None),  # no groups of two
        (3, {}, 6, None),  # no branches of the tree of sums
        (2, {"parallel.shard_ranks": 1}, 3, 1),
    ],
)
@pytest.mark.thorough
def test_a_run_in_groups_is_evaluated_in_its_groups_or_as_one(
    folder, groups, given, num_ranks, sharing
):
    settings = {"parallel__policy": "hsdp", "parallel__shard_ranks": groups}
    run(settings_of(folder, batch__sequences=12, **settings), num_ranks=groups)

    def measure(num_ranks, given):
        def on_rank(backend):
            trained = TrainedRun(folder / "run", given, backend)
            figures = evaluate(trained, trained.samples(str(folder / "other.txt")))
            facts, policy = trained.model.get_model_metadata(), parts_of(trained.model).policy
            trained.close()
            return figures, facts["shard_ranks"] if policy.in_groups else None

        (found, *others) = sk.run_ranks(num_ranks, on_rank)
        assert all(other == found for other in others)
        return found

    figures, found = measure(num_ranks, given)
    assert found == sharing and figures == measure(groups, {})[0]


@pytest.mark.thorough
def test_a_run_of_text_is_evaluated_on_other_text_alike_on_any_number_of_ranks(folder):
    run(settings_of(folder))

    def measure(backend):
        trained = TrainedRun(folder / "run", {}, backend)
        samples = trained.samples(str(folder / "other.txt"))
        figures = evaluate(trained, samples)
        x, y = samples.read(numpy.arange(len(samples)))
        whole = trained.model.evaluate(x, y)
        trained.close()
        return figures, whole

    found = [sk.run_ranks(num_ranks, measure)[0] for num_ranks in (1, 3)]
    (figures, whole), (on_three, _) = found
    assert figures == on_three and figures.metrics == {}
    assert figures.loss == pytest.approx(whole, rel=1e-6)
    assert figures.samples == ((folder / "other.txt").stat().st_size - 1) // 8
