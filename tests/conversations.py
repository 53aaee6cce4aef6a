"""Conversations, and the folder of a small tokenizer with a chat template."""

import json
import random

import pytest

PLAIN = """{% if tools %}<|im_start|>tools
{{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
MARKED = """{% for message in messages %}
{% if message['role'] == 'assistant' %}
{{ '<|im_start|>assistant
' }}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '
' }}
{% else %}
{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>
' }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant
' }}
{% endif %}"""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = ["sun", "naïve", "漢字", "2 + 2", "rain", "a", "tree.", "no", "🙂"]


def some_words(draw, most):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randrange(1, most)))


def conversation(draw, turns=3, most=6):
    messages = [{"role": "system", "content": "be brief"}] * draw.randrange(2)
    for _ in range(draw.randrange(1, turns + 1)):
        messages += [
            {"role": "user", "content": some_words(draw, most)},
            {"role": "assistant", "content": some_words(draw, most)},
        ]
    return messages


def records(count, seed=0, **sizes):
    draw = random.Random(seed)
    return [{"messages": conversation(draw, **sizes)} for _ in range(count)]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_tokenizer(folder, template=PLAIN):
    """Write tokenizer.json and its settings, with this chat template or none."""
    tokenizers = pytest.importorskip("tokenizers")
    folder.mkdir(exist_ok=True)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(WORDS * 3, trainer)
    made.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0]}
    if template is not None:
        about["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    return folder
