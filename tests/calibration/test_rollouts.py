"""Rollouts of trainers as token ids: what the agent has read and said, whatever became of its special tokens."""

from types import SimpleNamespace
from typing import Any

import pytest

from ramerge.calibration.prompts import Prompt, Reply

pytestmark = [
    pytest.mark.full,  # torch
    pytest.mark.needs("torch", "transformers"),
]
pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

from ramerge.calibration.encode import ExampleEncoder  # noqa: E402
from ramerge.calibration.speaker import Speaker  # noqa: E402

SPECIAL = ("<s>", "</s>", "<|start|>", "<|end|>")
SPOKEN = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
DEFAULT_SYSTEM = "{% if messages[0].role != 'system' %}<|start|>system\nBe kind.<|end|>\n{% endif %}" + SPOKEN
OPENED = "<s>" + SPOKEN
MARKED = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }}</s>"
    "{% else %}{{ raise_exception('no system') }}{% endif %}{% endfor %}"
)
UNMARKED = "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}<|start|>"
SYSTEM, USER, SAID, AGAIN = (
    {"role": role, "content": content}
    for role, content in (
        ("system", "Add."),
        ("user", "What is\n2 + 2?"),
        ("assistant", "4"),
        ("user", "And user 3?\nassistant of mine"),
    )
)


def tokenizer(template: str | None, *, bos: bool = False) -> Any:
    """Bytes, and a few special tokens; one is put in front of texts if `bos`."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    ids = {token: place for place, token in enumerate([*SPECIAL, *alphabet])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(ids, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    if bos:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="<|end|>" if template else "</s>",
        additional_special_tokens=list(SPECIAL[2:]),
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def ids_of(made: Any, text: str) -> list[int]:
    return list(made(text, add_special_tokens=False)["input_ids"])


def decoded(made: Any, text: str) -> str:
    """As trainers do it."""
    return str(made.decode(ids_of(made, text), skip_special_tokens=True))


def rendered(made: Any, messages: list[dict[str, str]], *, tasks: bool = True) -> str:
    return str(made.apply_chat_template(messages, tokenize=False, add_generation_prompt=tasks))


def speaker(made: Any, positions: int = 1000) -> Speaker:
    live: Any = SimpleNamespace(positions=positions, vocabulary=len(made))
    return Speaker("agent", live, made, 8)


@pytest.mark.parametrize("template", [SPOKEN, DEFAULT_SYSTEM, OPENED, MARKED])
@pytest.mark.parametrize(
    "messages", [[USER], [AGAIN], [SYSTEM, USER], [USER, SAID, AGAIN], [SYSTEM, USER, SAID, USER, SAID, AGAIN]]
)
def test_decoded_prompt_regains_special_tokens(template: str, messages: list[dict[str, str]]) -> None:
    made = tokenizer(template, bos=template == OPENED)
    if template == MARKED and messages[0] is SYSTEM:
        return
    text = rendered(made, messages)
    found = ExampleEncoder(made, 1000).conversation(decoded(made, text))
    assert found is not None
    assert rendered(made, list(found[0])) + found[1] == text
    # what the agent has said, and the token that ended it
    expected = ids_of(made, text) + ids_of(made, "7</s>" if template == MARKED else "7<|end|>")
    made.eos_token = "</s>" if template == MARKED else "<|end|>"
    prompt = Prompt("p", decoded(made, text), replies=(Reply("7", 1.0),), state="decoded")
    exchange = speaker(made).first_reply(prompt)
    assert not isinstance(exchange, str)
    assert list(exchange.ids) == expected
    assert exchange.start == len(ids_of(made, text))


def test_empty_thoughts_of_the_template_stay() -> None:
    made = tokenizer(SPOKEN)
    text = decoded(made, rendered(made, [USER])) + "<think>\n\n</think>\n\n"
    assert ExampleEncoder(made, 1000).conversation(text) == ([USER], "<think>\n\n</think>\n\n")
    exchange = speaker(made).first_reply(Prompt("p", text, replies=(Reply("7"),), state="decoded"))
    assert not isinstance(exchange, str)
    assert made.decode(exchange.ids) == rendered(made, [USER]) + "<think>\n\n</think>\n\n7<|end|>"


@pytest.mark.parametrize("template", [None, SPOKEN, UNMARKED])
def test_decoded_plain_text_stays_a_text(template: str | None) -> None:
    made = tokenizer(template, bos=True)
    text = "Once upon\n\na time"
    assert ExampleEncoder(made, 1000).conversation(text) is None
    exchange = speaker(made).first_reply(Prompt("p", text, replies=(Reply(" there"),), state="decoded"))
    assert not isinstance(exchange, str)
    assert made.decode(exchange.ids) == f"<s>{text} there{made.eos_token}"


@pytest.mark.parametrize(("state", "opening"), [("plain", "<s>"), ("rendered", "")])
@pytest.mark.parametrize("text", ["2 + 2", "<s>2 + 2"])
def test_no_token_is_put_in_front_twice(state: Any, opening: str, text: str) -> None:
    made = tokenizer(None, bos=True)
    exchange = speaker(made).first_reply(Prompt("p", text, replies=(Reply("4</s>"),), state=state))
    assert not isinstance(exchange, str)
    assert made.decode(exchange.ids) == opening + text.removeprefix(opening) + "4</s>"
    assert exchange.ids[exchange.start :] == (*ids_of(made, "4"), 1)


def test_token_ids_count_more_than_texts() -> None:
    made = tokenizer(SPOKEN)
    reply = Reply("4", 1.0, ids=(0, 9, 8, 7, 6), start=3)
    for positions, expected, start in ((8, (0, 9, 8, 7, 6), 3), (4, (0, 8, 7, 6), 2)):
        exchange = speaker(made, positions).first_reply(Prompt("p", "x", replies=(reply,), state="rendered"))
        assert not isinstance(exchange, str)
        assert (exchange.ids, exchange.start) == (expected, start)


def test_turns_between_prompt_and_reply_are_read() -> None:
    made = tokenizer(SPOKEN)
    exchange = speaker(made).first_reply(Prompt("p", None, (USER,), (Reply("7", turns=(SAID, AGAIN)),)))
    assert not isinstance(exchange, str)
    assert made.decode(exchange.ids) == rendered(made, [USER, SAID, AGAIN]) + "7<|end|>"


def test_prompt_reads_the_same_without_its_reply() -> None:
    made = tokenizer(SPOKEN, bos=True)
    thinking = rendered(made, [USER]) + "<think>\n\n</think>\n\n"
    for text, state, expected in (
        ("2 + 2", "plain", "<s>2 + 2"),
        ("<s>2 + 2", "rendered", "<s>2 + 2"),
        ("Once upon", "decoded", "<s>Once upon"),
        (decoded(made, thinking), "decoded", thinking),
    ):
        found = speaker(made).question(Prompt("p", text, state=state))
        assert not isinstance(found, str)
        assert made.decode(found[0]) == expected
