"""Text from shardkit beside transformers' `generate`, on one core each, in one process.

    python benchmarks/generation.py                         all models
    python benchmarks/generation.py --model deep --turns 5

Needs transformers and PyTorch. Models are made by transformers with random weights and read from
the folder that it saves. Both continue the same prompts greedily, in turns, and the processor's
time is counted; the texts of 20 prompts must be equal. Twice: one prompt, and eight of unequal
lengths, which transformers pads on the left. What is printed are tokens per second of the median
turn, and of the slowest and the quickest; the ratio of the medians, unless the turns of one side
are so far apart that it says nothing; and how many times the tokens of one prompt eight bring.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
os.environ.update(dict.fromkeys(ONE_THREAD, "1"))  # before the libraries are loaded

import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import shardkit as sk  # noqa: E402

LENGTHS = range(20, 60, 5)  # of eight prompts; one prompt has 40 tokens
NUM_TEXTS = 20  # that are compared
MOST_SPREAD = 1.5  # of the quickest turn to the slowest, of which a median says something


def llama(vocabulary: int, width: int, layers: int, heads: int, kv_heads: int, hidden: int):
    """Return a Llama with random weights."""
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=hidden,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2(vocabulary: int, width: int, layers: int, heads: int):
    """Return a GPT-2 with random weights."""
    config = transformers.GPT2Config(
        vocab_size=vocabulary,
        n_positions=512,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        eos_token_id=None,
    )
    return transformers.GPT2LMHeadModel(config)


MODELS = {
    "wide": lambda: llama(8192, 512, 8, 8, 4, 1536),  # 29 M parameters
    "deep": lambda: llama(8192, 384, 18, 6, 2, 1024),  # 31 M
    "gpt2": lambda: gpt2(8192, 512, 8, 8),  # 30 M
    "smollm": lambda: llama(49152, 576, 30, 9, 3, 1536),  # 135 M, the sizes of SmolLM2-135M
}


class Contestants:
    """Both with the same weights."""

    def __init__(self, make, folder: Path, backend):
        torch.manual_seed(0)
        self._theirs = make().eval()
        self._theirs.save_pretrained(folder)
        config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=1.0))
        self._ours = sk.DDPModel(sk.models.GPT.from_checkpoint(folder), config)
        self._ours.load_model(folder, only="model")
        self.vocabulary = self._theirs.config.vocab_size

    def shardkit(self, prompts, num_tokens):
        """Return what follows each prompt."""
        return [text.tolist() for text in self._ours.generate(prompts, num_tokens, temperature=0)]

    def transformers(self, prompts, num_tokens):
        """Return what follows each prompt."""
        longest = max(map(len, prompts))
        padded = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
        is_there = [[position >= longest - len(p) for position in range(longest)] for p in prompts]
        found = self._theirs.generate(
            torch.tensor(padded),
            attention_mask=torch.tensor(is_there).long(),
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        return [text[longest:].tolist() for text in found]


def seconds_of(contestants, prompts, num_tokens: int, turns: int):
    """Return the processor seconds of each turn of both, {name: [turns]}."""
    names = ("shardkit", "transformers")
    seconds = {name: [] for name in names}
    for turn in range(turns + 1):  # the first is not counted
        for name in names:
            start = time.process_time()
            getattr(contestants, name)(prompts, num_tokens)
            if turn:
                seconds[name].append(time.process_time() - start)
    return seconds


def in_words(sides: dict[str, list[float]]) -> str:
    """Return the tokens per second of each side's turns, and the ratio of the first to the second.

    A ratio is given where no side's turns are farther apart than MOST_SPREAD.
    """
    texts = [
        f"{side} {median(each):.0f} tokens/s ({min(each):.0f} to {max(each):.0f})"
        for side, each in sides.items()
    ]
    ours, theirs = map(median, sides.values())
    spread = max(max(each) / min(each) for each in sides.values())
    ratio = f"ratio {ours / theirs:.2f}"
    if spread > MOST_SPREAD:
        ratio = f"no ratio: turns of one side are {spread:.1f} times apart, try a quiet machine"
    return ", ".join([*texts, ratio])


def race(name: str, num_tokens: int, turns: int, backend) -> None:
    """Run one model and print its lines."""
    random = numpy.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        both = Contestants(MODELS[name], Path(folder), backend)

    def prompt(length):
        return random.integers(0, both.vocabulary, length).tolist()

    some = [prompt(length) for length in random.integers(1, 60, NUM_TEXTS)]
    texts = both.shardkit(some, num_tokens)
    equal = sum(text == both.transformers([one], num_tokens)[0] for text, one in zip(texts, some))
    print(f"{name}: {equal} of {NUM_TEXTS} texts of {num_tokens} tokens are equal")
    rates = []
    for prompts in ([prompt(40)], [prompt(length) for length in LENGTHS]):
        seconds = seconds_of(both, prompts, num_tokens, turns)
        tokens = len(prompts) * num_tokens
        sides = {side: [tokens / one for one in each] for side, each in seconds.items()}
        rates.append(median(sides["shardkit"]))
        print(f"{name}, {len(prompts)} at a time: {in_words(sides)}")
    print(f"{name}: eight at a time bring {rates[1] / rates[0]:.1f} times the tokens of one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    known = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    backend = sk.InMemoryCommunicationBackend(0, 1, "generation")
    backend.initialize()
    for name in known.model or MODELS:
        race(name, known.tokens, known.turns, backend)


if __name__ == "__main__":
    main()
