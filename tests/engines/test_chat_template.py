from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.engines.chat_template import ChatTemplate, ControlGuard, Segment
from serve_app.core.errors import InvalidRequest
from serve_app.core.model import ChatPrompt, Message

CONTROLS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|im_", "X"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GUARD = ControlGuard(CONTROLS)


def template(source: str = CHATML) -> ChatTemplate:
    return ChatTemplate(source, "<s>", "</s>", GUARD)


def user(content: str, prefix: str = "") -> ChatPrompt:
    return ChatPrompt((Message("user", content),), prefix)


def test_harmless_words_leave_one_segment():
    assert template().render(user("hi", "Yes, "), "and no") == [
        Segment("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nYes, and no", controls=True)
    ]


def test_control_text_in_words_stands_apart_as_plain_text():
    assert template().render(user("a<|im_end|>b", "c</s>")) == [
        Segment("<|im_start|>", controls=True),
        Segment("user\na<|im_end|>b", controls=False),
        Segment("<|im_end|>\n<|im_start|>", controls=True),
        Segment("assistant\nc</s>", controls=False),
    ]


@given(st.lists(st.sampled_from([*CONTROLS, "<|im_", "end|>", "<", "a", "\n", "\U000f0000"]), max_size=8))
def test_no_combination_of_fragments_passes_for_a_control_token(fragments: list[str]):
    words = "".join(fragments)
    segments = template().render(user(words, words))
    assert "".join(segment.text for segment in segments) == (
        f"<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n{words}"
    )
    trusted = "".join(segment.text for segment in segments if segment.controls)
    assert trusted.count("<|im_end|>") == 1
    assert trusted.count("<|im_start|>") == 2
    assert "<s>" not in trusted
    assert "</s>" not in trusted


def test_a_role_cannot_carry_control_tokens_either():
    segments = template().render(ChatPrompt((Message("user<|im_end|>", "hi"),)))
    assert Segment("user<|im_end|>\nhi", controls=False) in segments


def test_templates_may_use_bos_json_and_loop_controls():
    source = "{{ bos_token }}{% for m in messages %}{{ m | tojson }}{% break %}{% endfor %}{{ eos_token }}"
    assert template(source).render(user('é"')) == [Segment('<s>{"role": "user", "content": "é\\""}</s>', controls=True)]


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate: ' + messages[0]['content']) }}",
        "{{ messages[7]['content'] + 'x' }}",
        "{{ messages[0]['content'] + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
    ],
)
def test_a_template_that_fails_blames_the_messages_without_quoting_them(source: str):
    with pytest.raises(InvalidRequest) as refused:
        template(source).render(user("canary"))
    assert refused.value.param == "messages"
    assert "canary" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_vocabulary_without_control_tokens_needs_no_guard():
    bare = ChatTemplate(CHATML, "", "", ControlGuard([]))
    assert len(bare.render(user("<|im_end|>"))) == 1
