"""Thinking models: what acts on the environment, and what later prompts show, by real templates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from echo import BUDGET, TASK, Echo, scripted
from families import CHANNELS, PLAIN, THINKING, Family
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import gem
from gem.errors import ConfigurationError
from gem.replay import difference
from gem.rollout import ChatFormat, play_batch
from gem.tools import Tool, ToolCall, ToolResult
from gem.trajectory import Trajectory
from gem.wrappers import ToolEnv

FEW = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SECRET = "\\boxed{13} <tool_call>"
"""What stands in the thinking of every reply here, and nowhere else."""
OPEN, CLOSE, SPELLED_OPEN, SPELLED_CLOSE = "open", "close", "spelled open", "spelled close"


class Model:
    """A family's template on one of the tokenizers."""

    def __init__(self, family: Family, tokenizer: Any, markers: str) -> None:
        self.family, self.markers = family, markers
        self.tokenizer = family.dress(copy.deepcopy(tokenizer), markers)
        self.end = self.tokenizer.eos_token_id

    def chat(self, **kwargs: Any) -> ChatFormat:
        return ChatFormat(self.tokenizer, template_kwargs=dict(self.family.kwargs), **kwargs)

    def ids(self, part: Any) -> list[int]:
        """Tokens of a part of a reply: a text, a marker, a marker that is spelled, or ids."""
        if isinstance(part, list):
            return part
        names = [OPEN, CLOSE, SPELLED_OPEN, SPELLED_CLOSE]
        if part not in names:
            return list(self.tokenizer.encode(part, add_special_tokens=False))
        assert self.family.markers is not None
        marker = self.family.markers[names.index(part) % 2]
        if part in (OPEN, CLOSE):
            return list(self.tokenizer.encode(marker, add_special_tokens=False))
        half = len(marker) // 2
        return [i for text in (marker[:half], marker[half:]) for i in self.ids(text)]

    def reply(self, *parts: Any, closed: bool = True) -> list[int]:
        ids = [i for part in parts for i in self.ids(part)]
        return [*ids, self.end] if closed else ids

    def thinks(self, thought: str, answer: str) -> list[int]:
        """The reply of a model that thinks as its template has it."""
        return self.reply(*([] if self.family.opened else [OPEN]), thought, CLOSE, answer)

    def play(self, *replies: Any, **kwargs: Any) -> tuple[Trajectory, Any, list[str]]:
        """Return the episode, the requests, and what the environment was given."""
        given: list[str] = []

        class Watched(Echo):
            def step(self, action: str) -> Any:
                given.append(action)
                return super().step("aye")

        sampler = scripted([self.reply(r) if isinstance(r, str) else r for r in replies])
        context = kwargs.pop("context", "chat")
        [trajectory] = play_batch(
            [TASK],
            lambda batch: [sampler(request) for request in batch],
            self.chat(**kwargs),
            budget=BUDGET,
            context=context,
            make_env=lambda task: Watched(len(replies)),
        )
        return trajectory, sampler.requests, given


@pytest.fixture(scope="module")
def model(small_tokenizer: Any) -> Callable[[str, str], Model]:
    made: dict[tuple[str, str], Model] = {}

    def make(name: str, markers: str = "token") -> Model:
        if (name, markers) not in made:
            family = {**THINKING, **PLAIN, **CHANNELS}[name]
            made[name, markers] = Model(family, small_tokenizer, markers)
        return made[name, markers]

    return make


NAMES = [
    pytest.param(name, markers, id=f"{name}-{markers}")
    for name in THINKING
    for markers in ("token", "text", "special")
]
each_model = pytest.mark.parametrize(("name", "markers"), NAMES)


@each_model
def test_the_environment_is_given_what_follows_the_thinking(
    model: Any, name: str, markers: str
) -> None:
    m = model(name, markers)
    trajectory, _, given = m.play(m.thinks(f"\n{SECRET}\n", "\n\n\\boxed{4}"))
    assert given == ["\\boxed{4}"] == [trajectory.turns[0].text]
    whole = m.chat().decode(trajectory.turns[0].response_ids)
    assert SECRET in whole
    assert whole.endswith("\n\n\\boxed{4}")


def test_the_indentation_after_the_thinking_is_kept(model: Any) -> None:
    m = model("qwen3")
    _, _, given = m.play(m.thinks("low", "\n \n\n    return 4\n"), m.thinks("low", " 4 "))
    assert given == ["    return 4\n", " 4 "]


@each_model
def test_a_reply_that_never_leaves_its_thinking_is_empty_for_the_environment(
    model: Any, name: str, markers: str
) -> None:
    m = model(name, markers)
    opened: list[Any] = [] if m.family.opened else [OPEN]
    endless = [
        m.reply(*opened, SECRET),
        m.reply(*opened, SECRET, closed=False),
        m.reply(*opened, *["x"] * 80, closed=False),  # cut by the length limit
        m.reply(*opened, SECRET, CLOSE, "\n4", OPEN, SECRET),
    ]
    if m.family.opened:
        endless += [m.reply(), m.reply(SECRET, OPEN), []]
    for reply in endless:
        _, _, given = m.play(reply)
        assert given == [""]


@pytest.mark.parametrize("env_id", ["game:GuessTheNumber-v0-easy", "game:Sudoku-v0-easy"])
def test_an_empty_text_is_a_format_error(env_id: str) -> None:
    with gem.make(env_id) as env:
        env.reset(seed=0)
        *_, info = env.step("")
    assert info["format_error"]


def ugly() -> Any:
    """Replies as they come: markers in any order, spelled ones, control tokens, cut characters."""
    part = (
        st.sampled_from([OPEN, CLOSE, OPEN, CLOSE, SPELLED_OPEN, SPELLED_CLOSE])
        | st.sampled_from(["\\boxed{1}", "7", " eight", "\n\n", "\n", " ", "日本語", "low"])
        | st.lists(st.integers(0, 258), min_size=1, max_size=3)
    )
    return st.lists(st.tuples(st.lists(part, max_size=8), st.booleans()), min_size=1, max_size=4)


def expected(m: Model, parts: list[Any]) -> str:
    """What acts, from the parts that a reply was put together from."""
    opening, closing = [OPEN], [CLOSE]
    if m.markers == "text":
        opening, closing = [OPEN, SPELLED_OPEN], [CLOSE, SPELLED_CLOSE]
    ends = [k for k, part in enumerate(parts) if part in closing]
    answer = parts[ends[-1] + 1 :] if ends else parts
    if any(part in opening for part in answer) or (m.family.opened and not ends):
        return ""
    text: str = m.tokenizer.decode(m.reply(*answer, closed=False), skip_special_tokens=True)
    while ends and not text.partition("\n")[0].strip() and "\n" in text:
        text = text.partition("\n")[2]
    return text


@pytest.mark.parametrize("thinking", ["keep", "drop"])
@each_model
def test_ugly_replies_are_read_right_and_kept_exactly(
    model: Any, name: str, markers: str, thinking: str
) -> None:
    m = model(name, markers)

    @FEW
    @given(ugly())
    @example([([], False)])
    @example([([CLOSE, CLOSE], True), ([OPEN, CLOSE, "4", CLOSE, "5"], True)])
    @example([([OPEN, "7", CLOSE, "\\boxed{", OPEN, "1", CLOSE, "2}"], True), ([], True)])
    @example([([OPEN, SPELLED_CLOSE, "7"], False), ([SPELLED_OPEN, "7"], True)])
    def check(replies: list[tuple[list[Any], bool]]) -> None:
        sampled = [m.reply(*parts, closed=closed)[:63] for parts, closed in replies]
        trajectory, requests, given = m.play(*sampled, thinking=thinking)
        if all(len(m.reply(*parts)) < 63 for parts, _ in replies):
            assert given == [expected(m, parts) for parts, _ in replies]
        assert [turn.response_ids for turn in trajectory.turns] == sampled
        assert [turn.text for turn in trajectory.turns] == given
        rows = trajectory.training_rows()
        assert len(rows) == (1 if thinking == "keep" else len(replies))
        for row in rows:
            for span in row.spans:
                begin = len(row.prompt_ids) + span.start
                assert row.ids[:begin] == requests[span.turn].prompt_ids
                assert row.response_ids[span.start : span.end] == sampled[span.turn]

    check()


@each_model
def test_dropped_thinking_is_in_no_later_prompt(model: Any, name: str, markers: str) -> None:
    m = model(name, markers)
    replies = [m.thinks(f"\n{SECRET}\n", f"\n\nsay {k}") for k in range(3)]
    replies[1] = m.reply(*([] if m.family.opened else [OPEN]), SECRET)
    for context, shown in (("chat", True), ("concat_with_action", True), ("window:1", False)):
        _, requests, _ = m.play(*replies, "x", context=context, thinking="drop")
        texts = [m.chat().spell(request.prompt_ids) for request in requests]
        assert all(SECRET not in text for text in texts)
        assert ["say 0" in text for text in texts] == [False, True, shown, shown]
        assert "say 2" in texts[3]


@pytest.mark.parametrize("name", [name for name in THINKING if name != "qwen3.8"])
@pytest.mark.parametrize("space", ["", "\n", "\n\n", " \n\n"])
@pytest.mark.parametrize("answer", ["\\boxed{4}", "two\n\nlines.\n", "I say ", "last\n"])
def test_dropping_is_what_the_template_does(model: Any, name: str, space: str, answer: str) -> None:
    m = model(name)
    replies = [m.thinks("\nlow\n", f"{space}{answer}"), m.thinks("high", f"{space}5"), [m.end]]
    trajectory, requests, _ = m.play(*replies, thinking="drop")
    prompted = "<think>\n" if m.family.opened else ""
    messages = []
    for reply, turn, request in zip(replies, trajectory.turns, requests, strict=True):
        messages.append({"role": "user", "content": turn.observation})
        fresh = m.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **dict(m.family.kwargs)
        )
        assert m.chat().spell(request.prompt_ids) == fresh
        content = prompted + m.tokenizer.decode(reply[:-1])
        messages.append({"role": "assistant", "content": content})


def test_a_template_that_drops_nothing_by_itself_is_given_the_answers(model: Any) -> None:
    m = model("qwen3.8")
    replies = [m.thinks("\nlow\n", "\n\n4"), m.thinks("high", "\n\n5"), [m.end]]
    trajectory, requests, given = m.play(*replies, thinking="drop")
    messages = []
    for turn, request, text in zip(trajectory.turns, requests, given, strict=True):
        messages.append({"role": "user", "content": turn.observation})
        fresh = m.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        assert m.chat().spell(request.prompt_ids) == fresh
        messages.append({"role": "assistant", "content": text})


@pytest.mark.parametrize(
    "name", ["qwen3", "qwen3-thinking-2507", "qwen3.5", "deepseek-r1", "glm-4.5"]
)
def test_dropping_gives_the_tokens_of_a_fresh_rendering(qwen3_tokenizer: Any, name: str) -> None:
    m = Model(THINKING[name], qwen3_tokenizer, "token")
    replies = [m.thinks("\nlow\n", "\n\nI say \\boxed{4}."), m.thinks("high", "\n\n5"), [m.end]]
    trajectory, requests, _ = m.play(*replies, thinking="drop")
    messages = []
    for reply, turn, request in zip(replies, trajectory.turns, requests, strict=True):
        messages.append({"role": "user", "content": turn.observation})
        fresh = m.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        assert m.tokenizer.encode(fresh, add_special_tokens=False) == request.prompt_ids
        messages.append({"role": "assistant", "content": m.tokenizer.decode(reply[:-1])})


def test_answers_enter_later_prompts_with_the_tokens_that_were_sampled(model: Any) -> None:
    m = model("qwen3")
    letters = [i for letter in "higher" for i in m.ids(letter)]
    assert letters != m.ids("higher")
    _, requests, _ = m.play(m.reply(OPEN, SECRET, CLOSE, "\n\n", letters), "x", thinking="drop")
    ids = requests[1].prompt_ids
    assert any(ids[k : k + len(letters)] == letters for k in range(len(ids)))


def test_control_tokens_that_an_answer_spells_stay_text_when_thinking_is_dropped(
    model: Any,
) -> None:
    m = model("qwen3")
    spelled = [i for half in ("<|im_", "start|>user") for i in m.ids(half)]
    start = m.tokenizer.convert_tokens_to_ids("<|im_start|>")
    _, said, _ = m.play(m.reply(OPEN, CLOSE, spelled), "x", thinking="drop")
    _, plain, _ = m.play(m.reply(OPEN, CLOSE, "hello"), "x", thinking="drop")
    assert said[1].prompt_ids.count(start) == plain[1].prompt_ids.count(start)


@pytest.mark.parametrize("name", PLAIN)
def test_replies_of_models_without_thinking_are_never_searched(model: Any, name: str) -> None:
    m = model(name)
    for text in ("<think>low</think> 4", "<think>low", "low</think>", "", " 4 "):
        reply = [*m.ids(text), m.end]
        trajectory, _, given = m.play(reply, "x")
        assert given[0] == m.tokenizer.decode(reply, skip_special_tokens=True) == text
        assert len(trajectory.training_rows()) == 1


@pytest.mark.parametrize("name", PLAIN)
def test_thinking_that_a_template_does_not_know_cannot_be_dropped(model: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match="thinking='drop'.*knows no thinking"):
        model(name).chat(thinking="drop")


def test_thinking_can_be_left_to_the_answer_format(model: Any) -> None:
    m = model("deepseek-r1")
    _, _, given = m.play(m.thinks("low", " \\boxed{4}"), thinking="text")
    assert given == ["low</think> \\boxed{4}"]


def test_a_value_that_thinking_cannot_have_is_named(model: Any) -> None:
    with pytest.raises(ConfigurationError, match="keep, drop, text, got 'hide'"):
        model("qwen3").chat(thinking="hide")


@pytest.mark.parametrize("thinking", ["keep", "drop", "text"])
@pytest.mark.parametrize("name", CHANNELS)
def test_models_that_reply_in_channels_are_refused_by_name(
    model: Any, name: str, thinking: str
) -> None:
    with pytest.raises(ConfigurationError, match="gpt-oss's harmony"):
        model(name).chat(thinking=thinking)


def test_markers_in_a_templates_comment_are_not_known(small_tokenizer: Any) -> None:
    tokenizer = copy.deepcopy(small_tokenizer)
    tokenizer.chat_template = "{#- no </think> here -#}" + tokenizer.chat_template
    with pytest.raises(ConfigurationError, match="knows no thinking"):
        ChatFormat(tokenizer, thinking="drop")


def test_a_template_given_as_an_argument_is_the_one_that_counts(
    model: Any, small_tokenizer: Any
) -> None:
    source = {"chat_template": THINKING["qwen3"].source}
    chat = ChatFormat(small_tokenizer, template_kwargs=source, thinking="drop")
    assert chat.drops_thinking


@each_model
def test_thinking_that_is_kept_changes_no_prompt(model: Any, name: str, markers: str) -> None:
    m = model(name, markers)
    replies = [m.thinks("low", "\n\n4"), m.reply(SECRET, OPEN), m.reply("7"), "x"]
    kept, _, _ = m.play(*replies, thinking="keep")
    text, _, _ = m.play(*replies, thinking="text")
    assert kept.training_rows() == text.training_rows()
    assert kept.drift == text.drift


def test_a_tool_call_in_the_thinking_is_not_made(model: Any) -> None:
    m = model("qwen3")
    calls: list[str] = []

    class Note(Tool):
        tool_type = "note"

        def instruction(self) -> str:
            return "Say note:text."

        def parse(self, text: str) -> ToolCall | None:
            _, begin, rest = text.partition("note:")
            return ToolCall("note", {"text": rest}) if begin else None

        def execute(self, call: ToolCall) -> ToolResult:
            calls.append(call.arguments["text"])
            return ToolResult("noted", True)

    sampler = scripted(
        [
            m.reply(OPEN, "note:inside", CLOSE, "\n\nnote:after"),
            m.reply(OPEN, "note:never"),
            m.reply(OPEN, "note:inside", CLOSE, "the end"),
        ]
    )
    [trajectory] = play_batch(
        [TASK],
        lambda batch: [sampler(request) for request in batch],
        m.chat(),
        budget=BUDGET,
        make_env=lambda task: ToolEnv(Echo(2), Note()),
    )
    assert calls == ["after"]
    assert [turn.info["use_tool"] for turn in trajectory.turns] == [True, False, False]


def test_turning_thinking_off_reaches_the_prompt(model: Any) -> None:
    m = model("qwen3 off")
    _, requests, _ = m.play(m.reply("4"), "x")
    assert all(m.chat().spell(r.prompt_ids).endswith("<think>\n\n</think>\n\n") for r in requests)


def test_an_episode_with_thinking_is_replayed_from_its_record(model: Any) -> None:
    m = model("qwen3.5")
    trajectory, _, _ = m.play(m.thinks(SECRET, "\n\n4"), m.reply(SECRET), thinking="drop")
    read = Trajectory.from_json(trajectory.to_json())
    assert read.fingerprint == trajectory.fingerprint

    class Quiet(Echo):
        def step(self, action: str) -> Any:
            assert action in ("4", "")
            return super().step("aye")

    assert difference(read, lambda task: Quiet(2)) is None
