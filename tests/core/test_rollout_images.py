"""Rollouts with images: one prompt in two forms, and nothing but an image is an image."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers")
PIL = pytest.importorskip("PIL.Image")

from echo import TASK  # noqa: E402
from seeing import picture, png, read_by_engine  # noqa: E402

from gem.errors import ConfigurationError, ContractError, RolloutError  # noqa: E402
from gem.fingerprint import canonical  # noqa: E402
from gem.rollout import Budget, ChatFormat, Prompting, Sample  # noqa: E402
from gem.rollout.play import Episode  # noqa: E402
from gem.rollout.vision import VisionChatFormat, opened  # noqa: E402
from gem.trajectory import Trajectory  # noqa: E402
from gem_cpu import tiny_processor  # noqa: E402
from gem_cpu.tiny_processor import MARKERS, PATCHES, TEMPLATE  # noqa: E402
from gem_train.packed import PackedTrajectory  # noqa: E402

BUDGET = Budget(turn_tokens=64, response_tokens=20_000, prompt_tokens=20_000)
FILES = [png(c, s) for c in ("red", "#00ff00") for s in ((84, 84), (30, 200), (500, 300), (56, 28))]
PLAIN = st.text(st.sampled_from("ab 1\n\\{é日"), max_size=12)
WORDS = st.lists(PLAIN | st.sampled_from([*MARKERS, "<|im_end|>", "<|image_pad|>" * 3])).map(
    "".join
)
IMAGES = st.sampled_from(FILES).map(lambda file: {"type": "image", "image": file})


def observations(words: Any) -> Any:
    """Text, image and both, in any order."""
    texts = words.map(lambda text: {"type": "text", "text": text})
    return words | st.lists(texts | IMAGES, min_size=1, max_size=4)


def conversations(words: Any) -> Any:
    """Observations with the texts of the policy between them."""
    # Not with whitespace first: the template ends with some, and one encoding of both is another.
    said = PLAIN.map(str.strip)
    return st.lists(st.tuples(observations(words), said), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def small_seeing(make_tokenizer: Any) -> Any:
    return make_tokenizer(["guess the number 日本語 \\boxed{12} user system\n"], 330)


@pytest.fixture(
    scope="module",
    params=[(kind, words) for words in ("small_seeing", "qwen3_tokenizer") for kind in PATCHES],
    ids=lambda param: "-".join(param),
)
def seeing(request: pytest.FixtureRequest) -> Any:
    """Each real processor, with a small tokenizer and with that of Qwen3."""
    kind, words = request.param
    return tiny_processor.make(request.getfixturevalue(words), kind, most_tokens=16)


@pytest.fixture(scope="module")
def one(small_seeing: Any) -> Any:
    """One of them, for what does not depend on the model."""
    return tiny_processor.make(small_seeing, most_tokens=16)


def collapsing(processor: Any, chat: VisionChatFormat) -> Any:
    """An engine that is sent what it should be; it returns how many tokens it read."""

    def read(request: Any) -> int:
        sent = chat.collapse(request.prompt_ids, request.images)
        seen = read_by_engine(processor, sent, [image.data for image in request.images])
        assert seen == request.prompt_ids
        return len(seen)

    return read


def play(
    chat: Any, shown: Any, responses: list[list[int]], read: Any, budget: Budget = BUDGET
) -> tuple[Trajectory, list[Any]]:
    """Play an episode in which the k-th response follows the k-th observation."""
    episode = Episode(TASK, chat, budget=budget)
    episode.begin(shown[0], {})
    requests = []
    for turn, ids in enumerate(responses, 1):
        if episode.request is None:
            break
        requests.append(episode.request)
        read_tokens = read(episode.request) if episode.request.images else None
        said = [-0.5 - n for n in range(len(ids))]
        episode.receive(Sample(ids, said, "stop", prompt_tokens=read_tokens))
        over = turn == len(responses)
        episode.advance((shown[min(turn, len(shown) - 1)], 1.0, over, False, {}))
    return episode.trajectory, requests


def spoken(processor: Any, texts: list[str]) -> list[list[int]]:
    tokenizer = processor.tokenizer
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    return [[*tokenizer.encode(text, add_special_tokens=False), end] for text in texts]


def own_ids(processor: Any, shown: list[Any], texts: list[str]) -> list[int]:
    """What the processor itself makes of a conversation."""
    messages, files = [], []
    for n, observation in enumerate(shown):
        parts = observation
        if not isinstance(observation, str):
            parts = [p if p["type"] == "text" else {"type": "image"} for p in observation]
            files += [p["image"] for p in observation if p["type"] == "image"]
        messages.append({"role": "user", "content": parts})
        if n < len(texts):
            messages.append({"role": "assistant", "content": texts[n]})
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    made = processor(text=[text], images=[picture(file) for file in files] or None)
    return [int(i) for i in made["input_ids"][0]]


def test_every_prefix_of_a_conversation_has_the_processors_own_ids(seeing: Any) -> None:
    chat = VisionChatFormat(seeing)

    @settings(max_examples=20, deadline=None)
    @given(conversations(PLAIN))
    def check(turns: Any) -> None:
        shown, texts = [o for o, _ in turns], [t for _, t in turns]
        played, requests = play(chat, shown, spoken(seeing, texts), collapsing(seeing, chat))
        assert len(requests) == len(turns)
        for turn, request in enumerate(requests):
            assert request.prompt_ids == own_ids(seeing, shown[: turn + 1], texts[:turn])
        assert played.drift == []

    check()


def test_expand_and_collapse_are_inverse_and_a_row_is_what_the_engine_read(seeing: Any) -> None:
    chat = VisionChatFormat(seeing)
    pad = seeing.image_token_id

    @settings(max_examples=20, deadline=None)
    @given(conversations(WORDS), st.data())
    def check(turns: Any, data: st.DataObject) -> None:
        # Any ids, those that stand for an image included.
        ids = st.integers(0, 50) | st.sampled_from(sorted(chat.stop_ids))
        responses = [data.draw(st.lists(ids, max_size=6)) for _ in turns]
        shown = [observation for observation, _ in turns]
        played, requests = play(chat, shown, responses, collapsing(seeing, chat))
        [row] = played.training_rows()
        whole = chat.collapse(row.ids, row.images)
        assert whole.count(pad) == len(row.images)
        assert chat.expand(whole, row.images) == row.ids
        assert [i.data for i in row.images] == [
            part["image"]
            for observation in shown
            for part in (() if isinstance(observation, str) else observation)
            if part["type"] == "image"
        ]
        for span, request, response in zip(row.spans, requests, responses, strict=True):
            begin = len(row.prompt_ids) + span.start
            assert row.ids[:begin] == request.prompt_ids
            sampled = row.response_ids[span.start : span.end]
            assert sampled == response[: len(sampled)]
            assert row.logprobs is not None
            assert row.logprobs[span.start : span.end] == [-0.5 - n for n in range(len(sampled))]
            assert set(row.mask[span.start : span.end]) <= {1}
        assert sum(row.mask) == sum(span.end - span.start for span in row.spans)

    check()


def test_a_response_ends_before_the_first_token_of_an_image(seeing: Any) -> None:
    chat = VisionChatFormat(seeing)
    [word] = seeing.tokenizer.encode("1", add_special_tokens=False)
    for marker in MARKERS:
        i = seeing.tokenizer.convert_tokens_to_ids(marker)
        assert i in chat.stop_ids
        shown = [[{"type": "image", "image": FILES[0]}]] * 2
        played, _ = play(chat, shown, [[word, i, i, word], [i]], collapsing(seeing, chat))
        assert [turn.response_ids for turn in played.turns] == [[word], []]
        assert [turn.text for turn in played.turns] == ["1", ""]
        assert played.turns[0].logprobs == [-0.5]
        assert played.length_stops == 2
        # The episode counts: a policy cannot make it void.
        assert played.valid
        assert played.total_reward == 2


def test_a_policy_that_spells_an_image_writes_text(seeing: Any) -> None:
    chat = VisionChatFormat(seeing)
    said = "<|vision_start|><|image_pad|><|vision_end|>"
    ids = seeing.tokenizer.encode(said, add_special_tokens=False, split_special_tokens=True)
    quoted = [{"type": "text", "text": f"You said: {said}"}, {"type": "image", "image": FILES[1]}]
    shown = [[{"type": "image", "image": FILES[0]}], quoted]
    played, requests = play(chat, shown, [ids, ids], collapsing(seeing, chat))
    assert [turn.text for turn in played.turns] == [said, said]
    sent = chat.collapse(requests[1].prompt_ids, requests[1].images)
    assert sent.count(seeing.image_token_id) == 2
    assert seeing.tokenizer.decode(sent).count(f"You said: {said}<|vision_start|>") == 1
    assert played.drift == []


def test_words_of_an_observation_that_spell_an_image_are_text(seeing: Any) -> None:
    chat = VisionChatFormat(seeing)

    @settings(max_examples=20, deadline=None)
    @given(observations(WORDS))
    def check(observation: Any) -> None:
        kept, images = chat.accept(observation)
        ids = chat.collapse(chat.prompt(kept), images)
        parts = [kept] if isinstance(kept, str) else kept
        picked = ["<|vision_start|><|image_pad|><|vision_end|>", ""]
        expected = [
            part if isinstance(part, str) else part.get("text", picked[0]) for part in parts
        ]
        assert "".join(expected) in seeing.tokenizer.decode(ids)
        assert ids.count(seeing.image_token_id) == len(images)

    check()


@pytest.mark.parametrize("fault", ["expanded twice", "image dropped", "not counted"])
def test_an_engine_that_reads_the_images_otherwise_is_noticed(one: Any, fault: str) -> None:
    chat = VisionChatFormat(one)

    def read(request: Any) -> int | None:
        files = [image.data for image in request.images]
        if fault == "not counted":
            return None
        if fault == "expanded twice":
            return len(read_by_engine(one, request.prompt_ids, files))
        return len(
            read_by_engine(one, chat.collapse(request.prompt_ids, request.images), files[1:])
        )

    with pytest.raises(RolloutError, match="dropped or expanded twice"):
        play(chat, [[{"type": "image", "image": FILES[0]}]], [[5]], read)


def test_ids_that_do_not_have_the_images_are_refused(one: Any) -> None:
    chat = VisionChatFormat(one)
    kept, images = chat.accept([{"type": "image", "image": file} for file in FILES[:2]])
    ids = chat.prompt(kept)
    sent = chat.collapse(ids, images)
    assert [image.tokens for image in images] == [9, 7]
    for wrong in (
        lambda: chat.expand(ids, images),
        lambda: chat.collapse(sent, images),
        lambda: chat.collapse(ids, images[:1]),
        lambda: chat.collapse(ids, images[::-1]),
        lambda: chat.expand(sent, images[:1]),
        lambda: chat.expand(sent, [*images, images[0]]),
    ):
        with pytest.raises(RolloutError, match="placeholder tokens of images"):
            wrong()


def test_pixel_values_of_a_row_are_the_processors_own(seeing: Any) -> None:
    chat = VisionChatFormat(seeing)
    shown = [[{"type": "image", "image": file}] for file in FILES[:3]]
    played, _ = play(chat, shown, [[5]] * 3, collapsing(seeing, chat))
    [row] = played.training_rows()
    made = chat.inputs(row.images)
    own = seeing(text=["<|image_pad|>" * 3], images=[picture(file) for file in FILES[:3]])
    assert (made["pixel_values"] == own["pixel_values"]).all()
    assert made["image_grid_thw"].tolist() == own["image_grid_thw"].tolist()
    # A trainer whose processor is set otherwise than the one that played.
    other = tiny_processor.make(seeing.tokenizer, type(seeing).__name__, most_tokens=4)
    with pytest.raises(RolloutError, match="placeholder tokens"):
        VisionChatFormat(other).inputs(row.images)


def test_a_budget_counts_all_tokens_of_an_image(one: Any) -> None:
    chat = VisionChatFormat(one)
    shown = [[{"type": "image", "image": FILES[0]}]] * 3
    first = len(chat.prompt(shown[0]))
    more = len(chat.bridge(shown[0], closed=False))
    assert first > 9 < more
    budget = Budget(turn_tokens=4, response_tokens=more + 1, prompt_tokens=first)
    played, requests = play(chat, shown, [[5]] * 3, collapsing(one, chat), budget)
    assert [r.max_tokens for r in requests] == [4]
    assert played.end == "token_budget"
    played, _ = play(
        chat, shown, [[5]], collapsing(one, chat), Budget(4, 99, prompt_tokens=first - 1)
    )
    assert played.failure is not None
    assert f"has {first} tokens" in played.failure.message


def test_an_image_may_be_a_file_bytes_or_of_pillow(one: Any, tmp_path: Path) -> None:
    chat = VisionChatFormat(one)
    path = tmp_path / "red.png"
    path.write_bytes(FILES[0])
    shown = [{"type": "image", "image": each} for each in (FILES[0], path, str(path))]
    kept, images = chat.accept(shown)
    path.unlink()
    assert len({id(image) for image in images}) == 1
    assert images[0].data == FILES[0]
    memory, [image] = chat.accept([{"type": "image", "image": picture(FILES[0])}])
    assert opened(image).tobytes() == picture(FILES[0]).tobytes()
    # The episode's fingerprint is that of what the environment showed.
    assert canonical(memory) == canonical([{"type": "image", "image": picture(FILES[0])}])
    assert canonical(kept)[0] == canonical(shown[:1])[0]
    for wrong in (b"no image", tmp_path / "gone.png", 3):
        with pytest.raises(ContractError, match="image"):
            chat.accept([{"type": "image", "image": wrong}])


def test_what_readers_of_images_show_differently_is_settled(one: Any, tmp_path: Path) -> None:
    chat = VisionChatFormat(one)
    clear = png((10, 20, 30, 0), (56, 28), "RGBA")
    turned = tmp_path / "turned.jpg"
    exif = PIL.Exif()
    exif[0x0112] = 6
    PIL.new("RGB", (112, 56)).save(turned, exif=exif)
    _, (white, upright) = chat.accept(
        [{"type": "image", "image": each} for each in (clear, turned)]
    )
    assert opened(white).getcolors() == [(56 * 28, (255, 255, 255))]
    assert opened(upright).size == (56, 112)
    assert upright.tokens == 8


def test_contexts_and_thinking_that_cannot_show_images_are_refused_by_name(one: Any) -> None:
    chat = VisionChatFormat(one)
    for context in ("concat", "concat_with_action", "window:2"):
        episode = Episode(TASK, chat, budget=BUDGET, context=context)
        with pytest.raises(ConfigurationError, match=f"context '{context}' cannot show images"):
            episode.begin("text", {})
    with pytest.raises(ConfigurationError, match="thinking='drop' cannot show images"):
        VisionChatFormat(one, thinking="drop")
    with pytest.raises(ConfigurationError, match="parts of type image"):
        ChatFormat(one.tokenizer, template_kwargs={"chat_template": one.chat_template}).prompt(
            [{"type": "image", "image": FILES[0]}]
        )
    with pytest.raises(ConfigurationError, match="part of type video"):
        chat.accept([{"type": "video"}])[0]  # type: ignore[list-item]
        chat.prompt([{"type": "video"}])


def test_models_whose_images_cannot_be_shown_turn_by_turn_are_refused(
    one: Any, make_tokenizer: Any
) -> None:
    with pytest.raises(ConfigurationError, match="shows an image otherwise after another"):
        VisionChatFormat(one, template_kwargs={"chat_template": NUMBERING})
    with pytest.raises(ConfigurationError, match="does not show an image once"):
        VisionChatFormat(one, template_kwargs={"chat_template": TEXT_ONLY})
    with pytest.raises(ConfigurationError, match="does not tell how many tokens"):
        VisionChatFormat(one.tokenizer)
    plain = make_tokenizer(["guess"], 300)
    plain.add_tokens(list(MARKERS))
    with pytest.raises(ConfigurationError, match="must be a special token"):
        VisionChatFormat(tiny_processor.make(plain))


NUMBERING = "{%- set seen = namespace(n=0) %}" + TEMPLATE.replace(
    "{{- '<|vision_start|>", "{%- set seen.n = seen.n + 1 %}{{- seen.n ~ ': <|vision_start|>"
)
TEXT_ONLY = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if m.content is string else '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_settings_of_the_prompt_make_the_format_of_a_processor(one: Any) -> None:
    prompting = Prompting(system_prompt="Be brief.")
    chat = prompting.shared_chat_format(one)
    assert isinstance(chat, VisionChatFormat)
    assert chat is prompting.shared_chat_format(one)
    shown = [{"type": "image", "image": FILES[0]}]
    assert chat.spell(chat.prompt(shown)).startswith("<|im_start|>system\nBe brief.")
    given = Prompting(template_kwargs={"chat_template": one.chat_template})
    assert type(given.chat_format(one.tokenizer)) is ChatFormat


def test_an_episode_keeps_and_sends_each_image_once(one: Any) -> None:
    chat = VisionChatFormat(one)
    board = [png("red", (84, 84)), png("blue", (84, 84))]
    shown = [[{"type": "image", "image": bytes(bytearray(board[n % 2]))}] for n in range(20)]
    played, _ = play(chat, shown, [[5]] * 20, collapsing(one, chat))
    assert len({id(turn.images[0].data) for turn in played.turns}) == 2
    packed = PackedTrajectory.of(played)
    assert [packed.data.count(file) for file in board] == [1, 1]
    [row] = played.training_rows()
    [there] = PackedTrajectory.from_bytes(packed.data).training_rows()
    assert [i.data for i in there.images] == [i.data for i in row.images]
    assert there.images == row.images
    assert there.ids.tolist() == row.ids
    back = packed.unpack()
    assert [turn.images for turn in back.turns] == [turn.images for turn in played.turns]
    assert back.to_json() == played.to_json()
    # JSON has hashes only.
    assert len(played.to_json()) < 20 * 600
    read = Trajectory.from_json(played.to_json())
    assert read.to_json() == played.to_json()
    assert read.fingerprint == played.fingerprint == back.fingerprint
    assert read.training_rows()[0].images == row.images
    with pytest.raises(RolloutError, match="bytes of the image .* are missing"):
        chat.inputs(read.training_rows()[0].images)
    assert PackedTrajectory.of(read).training_rows()[0].images == row.images


def test_an_episode_without_images_is_written_as_ever(one: Any) -> None:
    chat = VisionChatFormat(one)
    played, requests = play(chat, ["a", [{"type": "text", "text": "b"}]], [[5], [6]], None)
    assert requests[1].images == ()
    assert "images" not in json.loads(played.to_json())["turns"][0]
    packed = PackedTrajectory.of(played)
    assert int.from_bytes(packed.data[4:6], "little") == 1
    assert set(packed.layout) == {"fresh", "context", "response", "logprobs", "wide"}
    assert packed.unpack().training_rows() == played.training_rows()


def test_images_of_pillow_do_not_stay_in_memory(one: Any) -> None:
    chat = VisionChatFormat(one)
    side, turns = 400, 20

    def shown(n: int) -> Any:
        return [{"type": "image", "image": PIL.new("RGB", (side, side), (n, n, n))}]

    tracemalloc.start()
    try:
        episode = Episode(TASK, chat, budget=BUDGET)
        episode.begin(shown(0), {})
        for n in range(1, turns + 1):
            assert episode.request is not None
            episode.receive(
                Sample([5], None, "stop", prompt_tokens=len(episode.request.prompt_ids))
            )
            episode.advance((shown(n), 0.0, n == turns, False, {}))
        trajectory = episode.trajectory
        del episode
        assert tracemalloc.get_traced_memory()[0] < turns * side * side * 3 / 10
        assert len(trajectory.training_rows()[0].images) == turns
    finally:
        tracemalloc.stop()
    del trajectory
    assert len(chat._known) == 0


def test_rollouts_of_text_import_nothing_for_images() -> None:
    code = "import gem.rollout, sys; print(*{'PIL', 'gem.rollout.vision'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
