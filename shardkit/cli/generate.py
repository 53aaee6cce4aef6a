"""`shardkit generate`."""

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..checkpoint.models import gpt_of
from ..checkpoint.sources import find_model
from ..comm.failure.agreement import collectively
from ..data.tokenizer import open_tokenizer, tokenizer_of
from ..errors import ConfigurationError
from ..files.notes import tell
from ..files.paths import spelled_out
from ..files.shown import shown
from ..layout.axes import parallel_sizes
from ..nn.generation import TOGETHER, checked_prompt
from ..nn.models.gpt import GPT
from ..optim.rules import SGD
from ..parallel.model.sharded_model import ShardedModel
from ..parallel.model.strategies import HybridShardedModel
from ..parallel.settings import ShardingConfiguration
from ..settings import Sections
from ..task.generation import language_model, stop_tokens_of, write_texts
from ..train.settings import MeshAxes, Parallel
from .arguments import add_averaged, add_checkpoint, count, local_path, option
from .job import job, mpi_backend
from .settings import parsed

_GENERATE = """continue texts with a trained model

Continue texts with a trained language model, alone or on many ranks:
  mpiexec -n 4 shardkit generate RUN --prompt 'Once' [--mesh.tensor=2 ...]
A text depends on its prompt and its seed, not on the ranks."""


_HOW = ("temperature", "top_k", "top_p", "repetition_penalty", "together")


@dataclass(frozen=True)
class GenerationConfiguration(Sections):
    """How the ranks share a model that generates text."""

    mesh: MeshAxes = MeshAxes()
    parallel: Parallel = Parallel()


def add_commands(add_command) -> None:
    """Add the parser of the command."""
    generate = add_command("generate", _generate, _GENERATE, takes_settings=True)
    add = partial(option, generate)
    add(
        "path",
        "run folder, checkpoint, folder of checkpoints, or folder of transformers",
        type=local_path,
    )
    add(
        "--prompt",
        "text to continue, may be given again; default: 'def '",
        action="append",
        type=spelled_out,
    )
    add("--prompt-file FILE", "a prompt in each line")
    add("--tokens", "most tokens to add", type=int, default=200)
    add("--temperature", "0 takes the most probable token", type=float, default=0.8)
    add("--top-k", "draw among the k likeliest tokens", type=count)
    add("--top-p", "draw among the likeliest tokens of this probability together", type=float)
    add(
        "--repetition-penalty P",
        "of tokens that the text has: a logit above 0 is divided by it",
        type=float,
        default=1.0,
    )
    add(
        "--stop",
        "text that ends a text, may be given again",
        action="append",
        default=[],
        type=spelled_out,
    )
    add("--seed", "of the first prompt", type=int, default=0)
    add(
        "--together N",
        "texts that a replica continues at a time",
        type=count,
        default=TOGETHER,
    )
    add("--tokenizer PATH", "tokenizer.json, where none is beside the weights")
    add("--numbers", "prompts are token numbers, as 5,3,8, and so is what is printed: no tokenizer")
    add("--json", "print an object of prompt and text in each line")
    add_checkpoint(generate)
    add_averaged(generate)


def _generate(known, overrides) -> int:
    backend = mpi_backend()
    with job(backend):
        with collectively(backend):
            prompts = _prompts(known)
            settings = GenerationConfiguration().replace(parsed(overrides, GenerationConfiguration))
            _check_numbers(known)
            checkpoint, _, taken = find_model(known.path, known.checkpoint)
            gpt = gpt_of(checkpoint, "generates text")
            files = checkpoint.companions()
        if backend.rank == 0 and (known.checkpoint is not None or not taken.is_newest):
            tell(taken.text)
        model = _sharded(gpt, settings, backend)
        only = "averaged" if known.averaged else "model"
        model.load_model(known.path, only=only, checkpoint=known.checkpoint)
        how = {name: getattr(known, name) for name in _HOW}
        if known.numbers:
            texts = _continued_numbers(model, prompts, known, how)
        else:
            with collectively(backend):
                own = None if known.tokenizer is None else open_tokenizer(known.tokenizer)
                tokenizer = tokenizer_of(files) if own is None else own
            is_shown = backend.rank == 0 and _is_watched(known, prompts)
            if is_shown:
                _show_piece(prompts[0])
            show = _show_piece if is_shown else None
            how |= {"stop": known.stop, "seed": known.seed, "show": show}
            texts = write_texts(model, tokenizer, prompts, known.tokens, **how)
            texts = [""] if is_shown else texts  # what is left of it is the line end
        if backend.rank == 0:
            _show(prompts, texts, as_json=known.json)
        model.close()
    return 0


def _prompts(known) -> list[str]:
    """Return the prompts of the command line, then those of the file."""
    prompts = list(known.prompt or [])
    if known.prompt_file is not None:
        prompts += _lines_of(known.prompt_file)
    if not prompts and known.numbers:
        raise ConfigurationError("--numbers wants --prompt=5,3,8 or --prompt-file=FILE")
    return prompts or ["def "]


def _is_watched(known, prompts: list[str]) -> bool:
    """Return True if a text is shown while it is generated: the only one, on a terminal."""
    return len(prompts) == 1 and not known.json and sys.stdout.isatty()


def _show_piece(piece: str) -> None:
    print(shown(piece), end="", flush=True)


def _lines_of(path: str) -> list[str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"--prompt-file={path}: {error}; wanted a file of UTF-8 text, a prompt in each line"
        ) from None
    return text.removesuffix("\n").split("\n") if text else []


def _check_numbers(known) -> None:
    """Raise ConfigurationError if --numbers comes with what is about text."""
    if known.numbers and (known.stop or known.tokenizer):
        name = "--stop" if known.stop else "--tokenizer"
        raise ConfigurationError(f"{name} is about text, but --numbers generates no text")


def _sharded(gpt: GPT, settings: GenerationConfiguration, backend) -> ShardedModel:
    parallel = settings.parallel
    sizes = parallel_sizes(settings.mesh.sizes)
    with collectively(backend):
        if parallel.stage_balance == "measured":
            raise ConfigurationError("parallel.stage_balance = 'measured' is of training")
        rule = SGD(lr=1.0)  # which never takes a step
        config = ShardingConfiguration(backend, optimizer=rule, **parallel.shared())
    return HybridShardedModel(gpt, config, **sizes, policy=parallel.policy)


def _continued_numbers(model: ShardedModel, prompts: list[str], known, how: dict) -> list[str]:
    with collectively(model.mesh.world):
        vocabulary_size = language_model(model).settings.vocabulary_size
        numbers = [_parsed_numbers(prompt, vocabulary_size) for prompt in prompts]
        how = {**how, "stop": stop_tokens_of(model)}
    seeds = list(range(known.seed, known.seed + len(prompts)))
    new = model.generate(numbers, known.tokens, seeds=seeds, **how)
    return [",".join(map(str, each.tolist())) for each in new]


def _parsed_numbers(prompt: str, vocabulary_size: int) -> list[int]:
    try:
        return checked_prompt([int(number) for number in prompt.split(",")], vocabulary_size)
    except ValueError:
        raise ConfigurationError(
            f"prompt {prompt!r}; wanted token numbers with --numbers, such as 5,3,8, each below "
            f"the model's {vocabulary_size:,}"
        ) from None


def _show(prompts: list[str], texts: list[str], *, as_json: bool) -> None:
    is_terminal = sys.stdout.isatty()
    for prompt, text in zip(prompts, texts):
        text = shown(text) if is_terminal else text
        print(json.dumps({"prompt": prompt, "text": text}) if as_json else text)
