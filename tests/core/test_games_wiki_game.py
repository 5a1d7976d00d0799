"""WikiGame: variants, rewards, limits, the bundled graph."""

from __future__ import annotations

import json
import pickle
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wiki import go

import gem
from gem.describing import parameters
from gem.envs.games.wiki_backends import Graph, GraphBackend, graph
from gem.envs.games.wiki_game import WikiGame, shortened
from gem.errors import ConfigurationError, DataError
from gem.grading.braces import boxed_texts

IDS = [f"game:WikiGame-v0{suffix}" for suffix in ("", "-easy", "-hard")]
VARIANTS = ["noregrets", "oneback", "freenav", "eidetic"]

# A -> B, C, End; B -> A, C; C -> D; D -> Goal; Goal -> A; End has no links.
SMALL = {
    "A": ["B", "C", "End"],
    "B": ["A", "C"],
    "C": ["D"],
    "D": ["Goal"],
    "Goal": ["A"],
    "End": [],
}


def lines(links: dict[str, list[str]]) -> list[str]:
    return [
        json.dumps({"title": title, "summary": f"About {title}. More.", "links": targets})
        for title, targets in links.items()
    ]


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(lines(SMALL)), encoding="utf-8")
    return str(path)


def started(file: str, variant: str, start: str = "A", **parameters: Any) -> WikiGame:
    """Return a game on the way from a page to `Goal`."""
    env = WikiGame(variant=variant, graph_file=file, **parameters)
    seed = 0
    while True:
        env.reset(seed=seed)
        if (env.trail[0].title, env.target.title) == (start, "Goal"):
            return env
        seed += 1


def test_the_bundled_graph_is_what_its_readme_says() -> None:
    bundled = graph(None)
    links = sum(len(page.links) for page in bundled.pages.values())
    data = files("gem").joinpath("data")
    readme = data.joinpath("README.md").read_text(encoding="utf-8")
    assert f"{len(bundled.pages)} pages" in readme
    assert f"{links:,} links" in readme
    assert len(data.joinpath("link_graph.jsonl").read_bytes()) < 400_000
    assert all(page.summary and len(page.summary) < 1000 for page in bundled.pages.values())


def test_every_page_of_the_bundled_graph_reaches_every_other() -> None:
    bundled = graph(None)
    title = bundled.titles[0]
    assert len(bundled.clicks_to(title)) == len(bundled.pages)
    seen, queue = {title}, [title]
    for page in queue:
        new = [t for t in bundled.pages[page].links if t not in seen]
        seen.update(new)
        queue.extend(new)
    assert len(seen) == len(bundled.pages)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("env_id", IDS)
def test_the_oracle_takes_a_shortest_way(env_id: str, variant: str) -> None:
    env: Any = gem.make(env_id, variant=variant)
    for seed in range(8):
        env.reset(seed=seed)
        clicks = graph(None).clicks_to(env.target.title)[env.trail[0].title]
        assert 1 <= clicks <= env.max_turns
        rewards = []
        done = False
        while not done:
            _, reward, done, truncated, info = env.step(env.oracle_action())
            assert not truncated
            rewards.append(reward)
        assert info["success"]
        assert rewards == [-0.05] * (clicks - 1) + [1.0]


@pytest.mark.parametrize(("max_turns", "min_clicks"), [(1, 1), (2, 2), (5, 5), (30, 4)])
def test_start_and_target_are_as_far_apart_as_asked_for(max_turns: int, min_clicks: int) -> None:
    env = WikiGame(max_turns=max_turns, min_clicks=min_clicks)
    for seed in range(5):
        env.reset(seed=seed)
        clicks = graph(None).clicks_to(env.target.title)[env.trail[0].title]
        assert min_clicks <= clicks <= max_turns


def test_clicks_are_counted_by_breadth_first_search() -> None:
    loaded = Graph(lines(SMALL), "small")
    assert loaded.clicks_to("Goal") == {"Goal": 0, "D": 1, "C": 2, "A": 3, "B": 3}
    assert loaded.clicks_to("End") == {"End": 0, "A": 1, "B": 2, "Goal": 2, "D": 3, "C": 4}
    assert loaded.titles == ("A", "B", "C", "D", "Goal")


def test_the_first_observation_has_all_that_is_needed(small: str) -> None:
    env = WikiGame(max_turns=7, graph_file=small)
    seed = 0
    while True:
        observation, info = env.reset(seed=seed)
        if (env.trail[0].title, env.target.title) == ("A", "Goal"):
            break
        seed += 1
    assert info == {}
    for line in (
        "within 7 turns",
        "You cannot go back",
        "Start page: A\nTarget page: Goal\nSummary of the target page: About Goal. More.",
        "Current page: A\nSummary: About A. More.\nTarget page: Goal",
        "Links: \\boxed{B}, \\boxed{C}, \\boxed{End}\nEnter the title of the next page.",
    ):
        assert line in observation


def test_a_step_shows_the_next_page(small: str) -> None:
    env = started(small, "noregrets", page_summary_length=(1, "sentences"))
    assert go(env, "C")[0] == (
        "At turn 1, you chose C. You are on C.\n"
        "Current page: C\nSummary: About C....\nTarget page: Goal\nLinks: \\boxed{D}\n"
        "Enter the title of the next page."
    )


@pytest.mark.parametrize(
    ("length", "unit", "expected"),
    [
        (7, "characters", "One two..."),
        (99, "characters", "One two. Three four! Five"),
        (3, "words", "One two. Three..."),
        (5, "words", "One two. Three four! Five"),
        (1, "sentences", "One two...."),
        (3, "sentences", "One two. Three four! Five"),
        (0, "words", "..."),
    ],
)
def test_summaries_are_cut_in_the_unit_asked_for(length: int, unit: str, expected: str) -> None:
    assert shortened("One two. Three four! Five", length, unit) == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_text_without_a_box_costs_a_turn_and_does_not_end_the_game(
    small: str, variant: str
) -> None:
    env = started(small, variant)
    observation, reward, terminated, truncated, info = env.step("I go to C")
    assert "you did not provide a valid title" in observation
    assert (reward, terminated, truncated) == (-0.2, False, False)
    assert (info["format_error"], env.turn) == (True, 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_title_that_is_no_link_is_invalid_and_near_ones_are_named(
    small: str, variant: str
) -> None:
    env = started(small, variant)
    observation, reward, terminated, _, info = go(env, "Ent")
    assert "Did you mean \\boxed{End}?" in observation
    assert (reward, terminated, info["invalid_action"]) == (-0.2, False, True)
    assert env.trail[-1].title == "A"
    assert "Did you mean" not in go(env, "z" * 100_000)[0]


@given(st.text("{}\\boxed a", max_size=40), st.sampled_from(["", "\\boxed{b}", "\\boxed{ }"]))
def test_the_last_closed_box_with_something_in_it_is_the_move(before: str, after: str) -> None:
    text = before + after
    contents = [" ".join(content.split()) for content in boxed_texts(text)]
    expected = next((content for content in reversed(contents) if content), None)
    assert WikiGame()._last_move(text) == expected


def test_case_and_underscores_do_not_matter() -> None:
    env = WikiGame()
    for seed in range(50):
        env.reset(seed=seed)
        title = next((t for t in env.trail[0].links if " " in t and t != env.target.title), None)
        if title:
            go(env, title.upper().replace(" ", "_"))
            assert env.trail[-1].title == title


def test_noregrets_never_goes_back_and_ends_at_a_page_without_links(small: str) -> None:
    env = started(small, "noregrets")
    go(env, "B")
    assert go(env, "<PREV_PAGE>")[1:3] == (-0.2, False)
    go(env, "A")
    observation, reward, terminated, truncated, info = go(env, "End")
    assert "no links: the game is over" in observation
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)


def test_oneback_goes_back_once_in_a_row(small: str) -> None:
    env = started(small, "oneback")
    assert go(env, "<prev_page>")[1] == -0.2
    go(env, "B")
    go(env, "C")
    assert go(env, "<PREV_PAGE>")[1] == -0.05
    assert env.trail[-1].title == "B"
    observation, reward, *_, info = go(env, "<PREV_PAGE>")
    assert "not possible twice in a row" in observation
    assert (reward, info["invalid_action"]) == (-0.2, True)
    go(env, "C")
    assert go(env, "<PREV_PAGE>")[1] == -0.05


def test_oneback_comes_back_from_a_page_without_links_for_another_turn(small: str) -> None:
    env = started(small, "oneback")
    observation, reward, terminated, truncated, _ = go(env, "End")
    assert "You are back on A" in observation
    assert (reward, terminated, truncated, env.turn) == (-0.1, False, False, 2)
    assert go(env, "C")[1] == -0.05
    env = started(small, "oneback", max_turns=3)
    go(env, "B")
    go(env, "A")
    assert env.turn == 2
    assert go(env, "End")[1:4] == (0.0, False, True)


def test_the_documented_reward_of_a_format_error_is_paid(small: str) -> None:
    [row] = [one for one in parameters(WikiGame) if one.name == "format_error_ends"]
    env = started(small, "noregrets")
    assert f"Its reward is {env.step('no box')[1]:g} either way." in row.meaning


@pytest.mark.parametrize("variant", ["freenav", "eidetic"])
def test_a_page_without_links_is_a_step_like_any_other_where_one_can_go_back(
    small: str, variant: str
) -> None:
    env = started(small, variant)
    assert go(env, "End")[1:4] == (-0.05, False, False)
    assert (env.trail[-1].title, env.turn) == ("End", 1)
    assert go(env, "<PREV_PAGE>")[1:4] == (-0.05, False, False)
    assert env.trail[-1].title == "A"


def test_freenav_goes_back_as_often_as_there_are_pages(small: str) -> None:
    env = started(small, "freenav")
    for title in ("B", "A", "End"):
        assert go(env, title)[1:3] == (-0.05, False)
    assert env.sample_random_action() == "\\boxed{<PREV_PAGE>}"
    for title in ("A", "B", "A"):
        assert go(env, "<PREV_PAGE>")[1] == -0.05
        assert env.trail[-1].title == title
    assert "no previous page" in go(env, "<PREV_PAGE>")[0]


def test_eidetic_goes_to_any_title_seen_in_this_episode_only(small: str) -> None:
    env = started(small, "eidetic", start="B")
    assert go(env, "End")[1] == -0.2
    for title in ("A", "End", "C"):
        assert go(env, title)[1] == -0.05
    env = started(small, "eidetic", start="B")
    env.reset(seed=None)
    assert set(env.seen) == {env.trail[0].title, *env.trail[0].links}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_target_ends_every_variant_with_a_reward_of_one(small: str, variant: str) -> None:
    env = started(small, variant, max_turns=3)
    go(env, "C")
    go(env, "D")
    observation, reward, terminated, truncated, info = go(env, "Goal")
    assert observation.startswith("Congratulations! You reached the target page Goal in 3 turns.")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("action", "last"), [("\\boxed{A}", 0.0), ("\\boxed{Nowhere}", -0.2), ("no box", -0.2)]
)
def test_the_limit_truncates_in_every_branch(
    small: str, variant: str, action: str, last: float
) -> None:
    env = started(small, variant, max_turns=4)
    for title in ("B", "A", "B"):
        go(env, title)
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation.endswith("You have reached the maximum number of turns.")
    assert (reward, terminated, truncated, info["success"]) == (last, False, True, False)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_snapshot_holds_the_way_and_not_the_graph(small: str, variant: str) -> None:
    env = started(small, variant)
    go(env, "B")
    copy = pickle.loads(pickle.dumps(env))
    assert len(pickle.dumps(env)) < 8000
    for title in ("A", "C", "D", "Goal"):
        assert go(copy, title) == go(env, title)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"variant": "eager"}, "variant must be one of 'noregrets', 'oneback'"),
        ({"backend": "web"}, "backend must be one of 'graph', 'mw', 'kiwix', got 'web'"),
        ({"page_summary_length": 100}, "page_summary_length must be a number and one of"),
        ({"page_summary_length": (5, "pages")}, "must be one of 'characters', 'words'"),
        ({"page_summary_length": (-1, "words")}, "an integer from 0 to 10000, got -1"),
        ({"max_turns": 0}, "max_turns must be an integer"),
        ({"max_turns": 2, "min_clicks": 3}, "min_clicks must be an integer from 1 to 2"),
        ({"backend": "mw", "min_clicks": 2}, "min_clicks=2 needs backend 'graph'"),
        ({"url": "http://x"}, "needs backend 'mw' or 'kiwix', got backend='graph'"),
        ({"query_delay_ms": 900}, "query_delay_ms=900 needs backend 'mw' or 'kiwix'"),
        ({"max_query_attempts": 1}, "max_query_attempts=1 needs backend 'mw' or 'kiwix'"),
        ({"query_use_cache": True}, "query_use_cache=True needs backend 'mw' or 'kiwix'"),
        ({"backend": "mw", "url": "file:///etc/passwd"}, "url must begin with http"),
        ({"backend": "mw", "zimfile": "x"}, "zimfile='x' needs backend 'kiwix'"),
        ({"backend": "kiwix"}, "needs zimfile"),
        ({"max_query_attempts": 0}, "max_query_attempts must be an integer from 1"),
    ],
)
def test_impossible_parameters_name_what_is_allowed(parameters: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        WikiGame(**parameters)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"title": "A"}', "line 1: expected a JSON object"),
        ("not json", "line 1: expected a JSON object"),
        ('{"title": "A", "summary": "", "links": "B"}', "line 1: title and summary must be texts"),
        ("\n".join(lines({"A": [], "B": ["C"]})), "no page has a link to another page"),
        ("\n".join(lines({"A": ["B"], "B": []}) * 2), "line 3: title 'A' comes twice"),
    ],
)
def test_a_bad_graph_file_says_which_line(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=text):
        WikiGame(graph_file=str(path)).reset(seed=0)


def test_a_relative_graph_file_is_that_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        links = {name: ["other"], "other": [name]}
        (tmp_path / name / "graph.jsonl").write_text("\n".join(lines(links)), encoding="utf-8")
        monkeypatch.chdir(tmp_path / name)
        env = WikiGame(graph_file="graph.jsonl")
        env.reset(seed=0)
        assert {env.trail[0].title, env.target.title} == {name, "other"}


def test_a_missing_graph_file_is_named_at_the_first_reset() -> None:
    env = WikiGame(graph_file="/nowhere/graph.jsonl")
    with pytest.raises(DataError, match=r"graph_file '/nowhere/graph.jsonl' cannot be read"):
        env.reset(seed=0)


def test_a_graph_without_pages_so_far_apart_says_so(small: str) -> None:
    with pytest.raises(DataError, match="no two pages that are 5 to 9 clicks apart"):
        WikiGame(max_turns=9, min_clicks=5, graph_file=small).reset(seed=0)


def test_the_registered_ids_work_offline() -> None:
    for env_id in IDS:
        env: Any = gem.make(env_id)
        assert isinstance(env.backend, GraphBackend)
