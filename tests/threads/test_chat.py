"""Training on conversations: the losses of PyTorch, the bits of one rank, and what comes back."""

import json

import h5py
import numpy
import pytest
from conversations import MARKED, PLAIN, records, write_lines, write_tokenizer
from torch_or_skip import torch

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.base import CorpusError, InputError
from shardkit.testing.checkpoint import compare, find_checkpoint, to_safetensors
from shardkit.testing.data import EpochOrder, Preparation, open_tokenizer, prepare_tokens
from shardkit.testing.parallel import parts_of
from shardkit.testing.task import load_task, write_texts
from shardkit.testing.train import (
    configuration_of,
    first_settings,
    read_metrics,
    resumed,
    stored_settings,
    train_run,
)

Chat = load_task("chat")
LENGTH = 64  # of a row: some conversations are longer
STEPS = 20
SETTINGS = {
    "run.task": "chat",
    "model.sequence_length": LENGTH,
    "batch.sequences": 6,
    "batch.micro_batch": 1,
    "run.steps": STEPS,
    "run.report_every": 1,
    "sample.tokens": 0,
    "optimizer.learning_rate": 2e-3,
    "optimizer.warmup_steps": 0,
    "optimizer.decay": "constant",
    "optimizer.weight_decay": 0.0,
    "optimizer.beta2": 0.999,
    "optimizer.max_gradient_norm": None,
}
MESHES = {  # ranks, settings
    "data 2": (2, {}),
    "zero1 3": (3, {"parallel.policy": "zero1"}),
    "tensor 2": (2, {"mesh.tensor": 2}),
    "pipeline 2": (2, {"mesh.pipeline": 2}),
    "all": (4, {"mesh.tensor": 2, "mesh.pipeline": 2}),
}
IN_DOMAIN = {"domain 2": (2, {"mesh.domain": 2}), "domain 3": (3, {"mesh.domain": 3})}


def prepared(folder, rows, tokenizer, name="chat", **more):
    lines = write_lines(folder / f"{name}.jsonl", rows)
    made = Preparation((str(lines),), folder / f"{name}.h5", str(tokenizer), is_chat=True, **more)
    return sk.run_ranks(2, lambda backend: prepare_tokens(backend, made))[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with chat.h5, and a small Llama of transformers with its tokenizer, `base`."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("chat")
    base = write_tokenizer(folder / "base", MARKED)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    config = transformers.LlamaConfig(vocab_size=300, **sizes, **heads, eos_token_id=[2, 0])
    transformers.LlamaForCausalLM(config).save_pretrained(base)
    prepared(folder, records(150), base)
    return folder


def run(folder, name, num_ranks=1, **more):
    """Train; return the loss of each step."""
    given = {**SETTINGS, "data.path": [str(folder / "chat.h5")]}
    given |= {"model.start": str(folder / "base"), "run.folder": str(folder / name), **more}
    settings = first_settings(configuration_of(Chat), given)
    sk.run_ranks(num_ranks, lambda backend: train_run(settings, backend))
    return losses_of(folder / name)


def losses_of(run):
    found = read_metrics(run / "metrics.jsonl")
    return [record["train_loss"] for record in found if "train_loss" in record]


@pytest.fixture(scope="module")
def packed_losses(folder):
    return run(folder, "packed")


# ---- against PyTorch -----------------------------------------------------------------------------


def tokens_of_transformers(folder):
    """Each record, with its token numbers as far as they fit, and which of them are answers."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "base")
    for record in records(150):
        made = tokenizer.apply_chat_template(
            record["messages"], return_assistant_tokens_mask=True, return_dict=True
        )
        yield record, made["input_ids"][: LENGTH + 1], made["assistant_masks"][: LENGTH + 1]


def known_conversations(folder):
    """{token numbers: targets} of each conversation that fits, as transformers makes them."""
    found = {}
    for _, ids, is_answer in tokens_of_transformers(folder):
        targets = [token if learns else -100 for token, learns in zip(ids, is_answer)]
        found[tuple(ids[:-1])] = targets[1:]
    return found


def batches(folder, packing):
    """The rows of each step: lists of (tokens, targets) of the conversations in a row."""
    known = known_conversations(folder)
    given = {**SETTINGS, "data.path": [str(folder / "chat.h5")], "data.packing": packing}
    settings = first_settings(
        configuration_of(Chat), {**given, "model.start": str(folder / "base")}
    )
    task = Chat(settings)
    task.prepare(folder / f"data-{packing}", resume=False)
    samples = task.samples("training")
    order = EpochOrder(len(samples), settings.run.seed, "training", samples.run_length)
    for step in range(STEPS):
        x, _ = samples.read(order.numbers(6 * step, 6))
        yield [conversations_in(row, known, packing) for row in x]


def conversations_in(row, known, packing):
    """The conversations of a row, each of which transformers must have made too."""
    begins = numpy.flatnonzero(row < -9) if packing else numpy.array([0])
    found = []
    for start, stop in zip(begins, [*begins[1:], len(row)]):
        ids = numpy.where(row < 0, row + 2**31, row)[start:stop].tolist()
        while tuple(ids) not in known and ids and ids[-1] == 0:  # what is free
            ids.pop()
        if ids:
            found.append((ids, known[tuple(ids)]))
    return found


def packed_logits(model, row):
    """Logits of the conversations of a row at once, with a mask of blocks along the diagonal."""
    sizes = [len(ids) for ids, _ in row]
    which = torch.repeat_interleave(torch.arange(len(row)), torch.tensor(sizes))
    positions = torch.cat([torch.arange(size) for size in sizes])
    sees = (which[:, None] == which[None]).tril()[None, None]
    ids = torch.tensor([sum([ids for ids, _ in row], [])])
    mask = torch.where(sees, 0.0, -torch.inf)
    return model(ids, attention_mask=mask, position_ids=positions[None]).logits[0]


def logits_one_by_one(model, row):
    return torch.cat([model(torch.tensor([ids])).logits[0] for ids, _ in row])


def losses_of_torch(folder, packing, logits_of):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "base", dtype=torch.float32, attn_implementation="eager"
    )
    rule = {"lr": 2e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(model.parameters(), **rule)
    losses = []
    for rows in batches(folder, packing):
        logits = torch.cat([logits_of(model, row) for row in rows])
        targets = [target for row in rows for _, some in row for target in some]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(targets))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


@pytest.mark.thorough
@pytest.mark.parametrize("logits_of", [packed_logits, logits_one_by_one])
def test_twenty_packed_steps_have_the_losses_of_torch(folder, packed_losses, logits_of):
    wanted = losses_of_torch(folder, True, logits_of)
    numpy.testing.assert_allclose(packed_losses, wanted, atol=1e-5, rtol=0)
    assert wanted[-1] < 0.9 * wanted[0]


@pytest.mark.thorough
def test_twenty_steps_of_a_conversation_in_each_row_have_the_losses_of_torch(folder):
    ours = run(folder, "apart", **{"data.packing": False})
    wanted = losses_of_torch(folder, False, logits_one_by_one)
    numpy.testing.assert_allclose(ours, wanted, atol=1e-5, rtol=0)


def losses_of_trl(folder, rows, packing, batch):
    """Of STEPS steps over conversations in this order. TRL is not installed with other packages."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    import transformers

    class InOrder(trl.SFTTrainer):
        losses: list = []

        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def training_step(self, *arguments, **more):
            loss = super().training_step(*arguments, **more)
            self.losses.append(loss.item())
            return loss

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "base")
    tokenizer.pad_token = "<|endoftext|>"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    rule = {"learning_rate": 2e-3, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    numerics = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    told = {"report_to": [], "save_strategy": "no", "disable_tqdm": True}
    form = {"packing": packing, "max_length": LENGTH if packing else LENGTH + 1}
    config = trl.SFTConfig(
        str(folder / "trl"),
        per_device_train_batch_size=batch,
        max_steps=STEPS,
        assistant_only_loss=True,
        **(rule | numerics | told | form),
    )
    trainer = InOrder(
        model, config, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer
    )
    trainer.train()
    return trainer.losses, len(trainer.train_dataset)


@pytest.mark.thorough
def test_twenty_steps_have_the_losses_of_trl(folder):
    """Packed, each step has all conversations: TRL puts them into other rows."""
    record_of = {tuple(ids[:-1]): record for record, ids, _ in tokens_of_transformers(folder)}
    order = [
        record_of[tuple(ids)] for step in batches(folder, False) for row in step for ids, _ in row
    ]
    wanted, _ = losses_of_trl(folder, order, False, 6)
    ours = run(folder, "in-order", **{"data.packing": False})
    numpy.testing.assert_allclose(ours, wanted, atol=1e-5, rtol=0)

    few = records(24, seed=1, turns=1, most=4)
    for name, rows in (("few", few), ("other", records(8, seed=7))):
        prepared(folder, rows, folder / "base", name)
    wanted, num_rows = losses_of_trl(folder, few, True, len(few))
    data = {"data.path": [f"{folder}/few.h5"], "data.validation_path": [f"{folder}/other.h5"]}
    ours = run(folder, "few", **{**data, "batch.sequences": num_rows})
    numpy.testing.assert_allclose(ours, wanted, atol=1e-5, rtol=0)


def test_the_exported_folder_has_our_logits_its_template_and_tokenizer(folder, packed_losses):
    transformers = pytest.importorskip("transformers")
    to_safetensors(folder / "packed", folder / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out")
    asked = [{"role": "user", "content": "rain"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids])).logits.numpy()
    numpy.testing.assert_allclose(
        sk.load(folder / "packed").predict(numpy.array([ids])), wanted, atol=1e-5
    )
    assert theirs.generation_config.eos_token_id == [2, 0]


# ---- on meshes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", MESHES)
def test_packed_losses_are_those_of_one_rank_on_every_mesh(folder, packed_losses, mesh):
    num_ranks, settings = MESHES[mesh]
    ours = run(folder, mesh, num_ranks, **settings, **{"run.steps": 4})
    atol = 1e-6 if "mesh.tensor" in settings else 0
    numpy.testing.assert_allclose(ours, packed_losses[:4], atol=atol, rtol=0)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("mesh", IN_DOMAIN)
def test_conversations_apart_may_be_cut_over_domain_ranks_and_packed_ones_not(folder, mesh):
    num_ranks, settings = IN_DOMAIN[mesh]
    few = {"run.steps": 3, "data.packing": False}
    alone = run(folder, f"alone {mesh}", **few)
    ours = run(folder, mesh, num_ranks, **settings, **few)
    numpy.testing.assert_allclose(ours, alone, atol=1e-6, rtol=0)
    with pytest.raises(ConfigurationError, match="data.packing = false, or leave mesh.domain out"):
        run(folder, "refused", num_ranks, **settings)


def test_rows_of_several_texts_are_refused_by_domain_ranks():
    def on_rank(backend):
        config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=0.1))
        gpt = sk.models.GPT(9, 8, width=8, layers=1, heads=2)
        model = sk.HybridShardedModel(gpt, config, domain_parallel_size=2)
        x = numpy.arange(8)[None]
        assert model.train(x, x) > 0
        model.train(numpy.where(x == 5, sk.nn.begin_text(x), x), x)

    with pytest.raises(sk.ShapeError, match="several texts.*or domain = 1"):
        sk.run_ranks(2, on_rank)


def test_lora_moves_the_updates_alone_and_is_merged_in_the_export(folder):
    transformers = pytest.importorskip("transformers")
    lora = {"model.lora_rank": 2, "run.steps": 3}
    alone = run(folder, "lora", **lora)
    assert alone == run(folder, "lora 2", 2, **lora)
    to_safetensors(folder / "lora", folder / "lora-out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "lora-out").eval()
    x = numpy.arange(24).reshape(2, 12)
    with torch.no_grad():
        wanted = theirs(torch.tensor(x)).logits.numpy()
    numpy.testing.assert_allclose(sk.load(folder / "lora").predict(x), wanted, atol=1e-5)


@pytest.mark.thorough
def test_a_run_goes_on_as_if_it_had_not_stopped(folder, packed_losses):
    run(folder, "stopped", **{"run.steps": 3})
    settings = resumed(
        stored_settings(folder / "stopped"), {"run.steps": STEPS, "mesh.pipeline": 2}
    )
    sk.run_ranks(2, lambda backend: train_run(settings, backend, resume=True))
    found = [find_checkpoint(folder / name)[0] for name in ("stopped", "packed")]
    assert compare(*found, tolerance=0.0).is_equal


# ---- what it says, and what it refuses -----------------------------------------------------------


def test_what_is_cut_is_counted_and_perplexity_is_told(folder, capsys):
    run(folder, "told", **{"run.steps": 2, "run.validate_every": 2, "sample.tokens": 3})
    told = capsys.readouterr().out
    known = [len(ids) + 1 for ids in known_lengths(folder)]
    cut = sum(size > LENGTH + 1 for size in known)
    assert cut > 0 and "of them cut at their end by" in told and "(perplexity " in told
    assert "<|im_start|>user\nWho are you?<|im_end|>" in told
    (record,) = [r for r in read_metrics(folder / "told" / "metrics.jsonl") if "perplexity" in r]
    assert record["perplexity"] == pytest.approx(numpy.exp(record["validation_loss"]))


def known_lengths(folder):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "base")
    return [
        tokenizer.apply_chat_template(record["messages"])["input_ids"][:-1]
        for record in records(150)
    ]


def test_texts_stop_at_the_tokens_of_the_generation_config(folder):
    def text(ends):
        return sk.run_ranks(1, lambda backend: on_rank(backend, ends))[0]

    def on_rank(backend, ends):
        config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=0.1))
        model = sk.FSDPModel(sk.models.GPT.from_checkpoint(folder / "base"), config)
        model.load_model(folder / "base", only="model")
        companions = {"generation_config.json": json.dumps({"eos_token_id": ends}).encode()}
        parts_of(model).checkpoints.add_companions(companions)
        return write_texts(model, tokenizer, ["rain"], 12, temperature=0)[0]

    tokenizer = open_tokenizer(folder / "base")
    whole = text([2])
    new = tokenizer.encode(whole)[len(tokenizer.encode("rain")) :]
    cut = text(int(new[3]))
    assert whole.startswith(cut) and len(cut) < len(whole)
    with pytest.raises(InputError, match="eos_token_id = 'x'.*wanted token numbers below 300"):
        text("x")


def test_conversations_and_texts_are_not_taken_for_each_other(folder):
    text = folder / "text.txt"
    text.write_text("sun rain " * 300)
    made = Preparation((str(text),), folder / "text.h5", str(folder / "base"))
    sk.run_ranks(1, lambda backend: prepare_tokens(backend, made))
    with pytest.raises(CorpusError, match="says not what is an answer.*--chat"):
        run(folder, "of text", **{"data.path": [str(folder / "text.h5")]})
    language = configuration_of(load_task("language"))
    given = {"data.path": [str(folder / "chat.h5")], "run.folder": str(folder / "wrong")}
    settings = first_settings(language, {**given, "model.sequence_length": 16})
    with pytest.raises(CorpusError, match="holds conversations.*--task=chat"):
        sk.run_ranks(2, lambda backend: train_run(settings, backend))
    with pytest.raises(ConfigurationError, match="data.path is empty"):
        run(folder, "nothing", **{"data.path": []})


def test_a_row_too_short_for_any_answer_is_refused(folder):
    with pytest.raises(CorpusError, match="no answer to learn within model.sequence_length = 3"):
        run(folder, "short", **{"model.sequence_length": 3})


def test_a_template_without_marks_learns_what_answers_add(tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "no"}]}
    ]
    prepared(tmp_path, rows, write_tokenizer(tmp_path / "plain", PLAIN))
    tokens, answers = stored(tmp_path / "chat.h5")
    written = open_tokenizer(tmp_path / "plain").decode(tokens[answers == 1])
    assert written == "no<|im_end|>\n"


def stored(path):
    with h5py.File(path) as file:
        return file["tokens"][:], file["answers"][:]
