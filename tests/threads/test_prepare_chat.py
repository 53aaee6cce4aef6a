"""`shardkit prepare --chat`: what is written, which of it is an answer, and what is refused."""

import json

import h5py
import numpy
import pytest
from conversations import MARKED, PLAIN, records, write_lines, write_tokenizer

from shardkit import ConfigurationError, run_ranks
from shardkit.testing.base import CorpusError
from shardkit.testing.data import Preparation, inputs, open_tokenizer, prepare_tokens

pytest.importorskip("jinja2")
USER = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "no"}
TEMPLATES = {"plain": PLAIN, "marked": MARKED}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(inputs, "LEAST_BLOCK", 1024)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("templates")
    for name, template in TEMPLATES.items():
        write_tokenizer(folder / name, template)
    return folder


def prepared(path, tokenizer, num_ranks=1, output="out.h5", **more):
    """Prepare; return (text, what is learned of it) of each conversation."""
    output = path.with_name(output)
    made = Preparation((str(path),), output, str(tokenizer), is_chat=True, **more)
    run_ranks(num_ranks, lambda backend: prepare_tokens(backend, made))
    decode = open_tokenizer(str(tokenizer)).decode
    with h5py.File(output) as file:
        documents, tokens, answers = (file[n][:] for n in ("documents", "tokens", "answers"))
    for start, stop in zip(documents, documents[1:]):
        own = slice(start, stop)
        yield decode(tokens[own]), decode(tokens[own][answers[own] == 1])


def of_one(tmp_path, record, tokenizer, **more):
    path = write_lines(tmp_path / "one.jsonl", [record])
    (found,) = prepared(path, tokenizer, **more)
    return found


@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_and_answers_are_those_of_transformers(tmp_path, folder, name):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / name)
    rows = records(30, seed=2)
    found = list(prepared(write_lines(tmp_path / "c.jsonl", rows), folder / name, 2))
    for (text, learned), row in zip(found, rows):
        how = {"return_dict": True, "return_assistant_tokens_mask": name == "marked"}
        made = tokenizer.apply_chat_template(row["messages"], **how)
        assert text == tokenizer.decode(made["input_ids"])
        if name == "marked":
            ids, mask = (numpy.array(made[k]) for k in ("input_ids", "assistant_masks"))
            assert learned == tokenizer.decode(ids[mask == 1])
        else:
            answers = [m["content"] for m in row["messages"] if m["role"] == "assistant"]
            assert learned == "".join(answer + "<|im_end|>\n" for answer in answers)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_the_file_is_the_same_for_any_number_of_ranks_and_of_parquet(tmp_path, folder, num_ranks):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = records(80, seed=4)
    path = write_lines(tmp_path / "c.jsonl", rows)
    alone = list(prepared(path, folder / "plain", 1, "one.h5"))
    assert alone == list(prepared(path, folder / "plain", num_ranks, "some.h5"))
    files = [(tmp_path / name).read_bytes() for name in ("one.h5", "some.h5")]
    assert files[0] == files[1]
    table = tmp_path / "c.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), table, row_group_size=30)
    assert alone == list(prepared(table, folder / "plain", num_ranks, "table.h5"))


def test_a_completion_is_learned_and_what_ends_it(tmp_path, folder):
    plain = folder / "plain"
    text, learned = of_one(tmp_path, {"prompt": "2 + 2", "completion": " no"}, plain)
    assert (text, learned) == ("2 + 2 no<|endoftext|>", " no<|endoftext|>")


@pytest.mark.parametrize("name", TEMPLATES)
def test_of_a_prompt_of_messages_the_completion_alone_is_learned(tmp_path, folder, name):
    record = {"prompt": [USER, ANSWER, USER], "completion": [{**ANSWER, "content": "tree."}]}
    text, learned = of_one(tmp_path, record, folder / name)
    assert "no<|im_end|>" in text and learned.startswith("tree.<|im_end|>")


def test_tools_and_calls_are_what_the_template_makes_of_them(tmp_path, folder):
    tools = [{"type": "function", "function": {"name": "sun", "description": "é < ü"}}]
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "sun"}}], "content": None}
    messages = [USER, call, {"role": "tool", "content": "9"}, ANSWER]
    template = tmp_path / "tools.jinja"
    template.write_text(
        PLAIN.replace("message['content']", "message.content or message.tool_calls")
    )
    given = {"chat_template": str(template)}
    for tools_as in (tools, json.dumps(tools)):
        record = {"messages": messages, "tools": tools_as}
        text, learned = of_one(tmp_path, record, folder / "plain", output="t.h5", **given)
        assert text.startswith(f"<|im_start|>tools\n{json.dumps(tools, ensure_ascii=False)}")
        assert learned == "[{'function': {'name': 'sun'}}]<|im_end|>\nno<|im_end|>\n"
        (tmp_path / "t.h5").unlink()


def test_the_template_travels_in_the_file(tmp_path, folder):
    template = tmp_path / "own.jinja"
    template.write_text(PLAIN.replace("im_start", "endoftext"))
    of_one(tmp_path, {"messages": [USER, ANSWER]}, folder / "marked", chat_template=str(template))
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["tokenizer/chat_template.jinja"][:].tobytes() == template.read_bytes()


WRONG = {  # record, what is said of it
    "role missing": (
        {"messages": [{"content": "a"}]},
        r"messages\[0\] with no role; wanted",
    ),
    "unknown role": ({"messages": [USER, {"role": "bot", "content": "a"}]}, r"\[1\].*role 'bot'"),
    "empty": ({"messages": []}, "'messages' which is empty; wanted a list"),
    "no answer": ({"messages": [USER]}, "no message of the role assistant"),
    "nothing": ({"text": "a"}, "neither 'messages' nor prompt and completion"),
    "no object": ([1], "is a JSON list; wanted an object"),
    "no list": ({"messages": "a"}, "'messages' which is a str"),
    "parts": ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "type list.*parts"),
    "no content": ({"messages": [USER, {"role": "assistant"}]}, "no content; wanted text"),
    "no message": ({"messages": [USER, "a"]}, r"messages\[1\] which is a str"),
    "half a pair": ({"prompt": "a"}, "neither 'messages' nor prompt and completion"),
    "mixed pair": ({"prompt": "a", "completion": [ANSWER]}, "'prompt' which is a str"),
    "answer asked": ({"prompt": [USER, ANSWER], "completion": [ANSWER]}, "ends with an answer"),
    "tools": ({"messages": [USER, ANSWER], "tools": [1]}, "'tools' of type list; wanted a list of"),
    "weight": ({"messages": [USER, {**ANSWER, "weight": 0}]}, r"messages\[1\] with a weight"),
    "marks": ({"messages": [{**USER, "content": "\ufdd0"}, ANSWER]}, "U[+]FDD0"),
    "surrogate": ({"messages": [{**USER, "content": "\ud800"}, ANSWER]}, "half of a surrogate"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_record_is_refused_with_its_line(tmp_path, folder, name):
    record, said = WRONG[name]
    path = write_lines(tmp_path / "c.jsonl", [{"messages": [USER, ANSWER]}, record])
    with pytest.raises(CorpusError, match=f"c.jsonl line 2 .*{said}"):
        list(prepared(path, folder / "plain", 2))


def test_a_line_that_is_no_json_and_a_row_of_a_table_are_named(tmp_path, folder):
    path = tmp_path / "c.jsonl"
    path.write_text('{"messages": [}\n')
    with pytest.raises(CorpusError, match="c.jsonl line 1 is no JSON"):
        list(prepared(path, folder / "plain"))
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"messages": [USER, ANSWER]}, {"messages": [USER]}]
    table = tmp_path / "c.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), table)
    with pytest.raises(CorpusError, match="c.parquet row 2 has no message of the role assistant"):
        list(prepared(table, folder / "plain"))
    parquet.write_table(pyarrow.Table.from_pylist([{"text": "a"}]), table)
    with pytest.raises(CorpusError, match="no column 'messages', nor prompt and completion"):
        list(prepared(table, folder / "plain"))


BAD_TEMPLATES = {  # source, what is said
    "syntax": ("{% for %}", "cannot be read: .*line 1"),
    "refuses": (
        "{{ raise_exception('roles must alternate') }}",
        "template of .*: roles must",
    ),
    "escapes": ("{{ ''.__class__.__mro__ }}", "SecurityError"),
    "changes": ("{{ messages.append(1) }}", "SecurityError"),
    "reads files": ("{% include '/etc/passwd' %}", "TypeError|TemplateNotFound"),
    "last alone": (
        "{{ messages[-1].content }}",
        "otherwise in its first 1 messages than as a whole",
    ),
    "no answers": ("{% generation %}{% endgeneration %}", "no answer in what the chat template"),
    "answers within answers": (
        "{% generation %}a{% generation %}b{% endgeneration %}c{% endgeneration %}",
        "{% generation %} within another",
    ),
    "marks of its own": ("a\ufdd1b", "U[+]FDD0 or U[+]FDD1 stands in it"),
    "nested": ("{{" + "(" * 3000 + "1" + ")" * 3000 + "}}", "cannot be read: .*too deeply"),
    "no UTF-8": (b"a\xff", "not valid UTF-8 at byte 1"),
    "not there": (None, "--chat-template=.*bad.jinja: no such file"),
}


@pytest.mark.parametrize("name", BAD_TEMPLATES)
def test_a_template_that_tells_no_answers_or_reaches_out_is_refused(tmp_path, folder, name):
    source, said = BAD_TEMPLATES[name]
    template = tmp_path / "bad.jinja"
    if source is not None:
        template.write_bytes(source if isinstance(source, bytes) else source.encode())
    with pytest.raises((CorpusError, ConfigurationError), match=said):
        record = {"messages": [USER, ANSWER, USER, {**ANSWER, "content": "tree."}]}
        of_one(tmp_path, record, folder / "plain", chat_template=str(template))


@pytest.mark.parametrize("with_tools", [None, 7])
def test_a_template_for_tools_may_be_missing_and_is_text(tmp_path, with_tools):
    made = write_tokenizer(tmp_path / "made", template=None)
    templates = {"default": PLAIN, "tool_use": with_tools}
    named = [{"name": name, "template": source} for name, source in templates.items()]
    (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    record = {"messages": [USER, ANSWER], "tools": [{"name": "sun"}]}
    if with_tools is None:
        assert "<|im_start|>tools" in of_one(tmp_path, record, made)[0]
        return
    with pytest.raises(ConfigurationError, match="tool_use of type int; wanted text"):
        of_one(tmp_path, record, made)


def test_what_is_no_conversation_or_has_no_template_is_refused(tmp_path, folder):
    path = write_lines(tmp_path / "c.jsonl", [{"messages": [USER, ANSWER]}])
    bare = write_tokenizer(tmp_path / "bare", template=None)
    with pytest.raises(ConfigurationError, match="has no chat template beside it; give --chat-"):
        list(prepared(path, bare))
    with pytest.raises(ConfigurationError, match="--chat: a tokenizer of bytes.*has no template"):
        list(prepared(path, "bytes"))
    text = tmp_path / "a.txt"
    text.write_text("a")
    with pytest.raises(ConfigurationError, match="--chat: .*a.txt is text; wanted JSON lines"):
        list(prepared(text, folder / "plain"))
    given = Preparation((str(text),), tmp_path / "o.h5", "bytes", chat_template=str(text))
    with pytest.raises(ConfigurationError, match="give --chat with it"):
        run_ranks(1, lambda backend: prepare_tokens(backend, given))
