"""WikiGame on servers of wikis that answer well or badly."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest
from wiki import WIKI, FakeWiki, Handler, go, served

from gem.envs.games.wiki_backends import Kiwix, MediaWiki, Page
from gem.errors import ResetNeededError, UnreachableError

SERVERS = pytest.mark.parametrize("kind", ["mw", "kiwix"])


@pytest.fixture
def wiki() -> Iterator[FakeWiki]:
    fake = FakeWiki()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"wiki": fake}))
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    server.shutdown()
    server.server_close()
    thread.join()


@SERVERS
def test_pages_are_read_whole(wiki: FakeWiki, kind: str) -> None:
    backend = served(wiki, kind).backend
    assert isinstance(backend, MediaWiki | Kiwix)
    assert backend.page("Alpha") == Page("Alpha", "Alpha is a page.", tuple(WIKI["Alpha"]))


@SERVERS
@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("Old Gamma", "Gamma"),
        ("Gama", "Gamma"),
        ("Mercury", "Delta"),
        ("Red", None),
        ("Mercury (list)", None),
    ],
)
def test_redirects_disambiguations_and_misspellings_lead_somewhere(
    wiki: FakeWiki, kind: str, asked: str, found: str | None
) -> None:
    page = served(wiki, kind).backend.page(asked)
    assert (page and page.title) == found


@SERVERS
def test_an_episode_is_played_to_its_end_and_seeds_repeat(wiki: FakeWiki, kind: str) -> None:
    env = served(wiki, kind)
    first, _ = env.reset(seed=3)
    assert served(wiki, kind).reset(seed=3)[0] == first
    assert env.trail[0].title != env.target.title
    assert {env.trail[0].title, env.target.title} <= set(WIKI)
    done = False
    while not done:
        target = env.target.title
        links = env.trail[-1].links
        _, reward, done, truncated, info = go(env, target if target in links else "Delta")
        if env.trail[-1].title == target:
            break
        if info["invalid_action"]:
            env.step(env.sample_random_action())
    assert reward == 1.0
    assert done and not truncated


@SERVERS
def test_a_link_to_a_missing_page_is_an_invalid_action(wiki: FakeWiki, kind: str) -> None:
    env = served(wiki, kind)
    seed = 0
    while env.reset(seed=seed) and env.trail[0].title != "Alpha":
        seed += 1
    observation, reward, terminated, _, info = go(env, "Red")
    assert "which does not exist" in observation
    assert (reward, terminated, info["invalid_action"]) == (-0.2, False, True)


@SERVERS
def test_there_is_no_oracle_without_a_graph(wiki: FakeWiki, kind: str) -> None:
    env = served(wiki, kind)
    env.reset(seed=0)
    with pytest.raises(NotImplementedError, match="backend='graph' only"):
        env.oracle_action()


@SERVERS
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_failing_server_is_asked_again(wiki: FakeWiki, kind: str, status: int) -> None:
    wiki.failures, wiki.status = 3, status
    page = served(wiki, kind).backend.page("Beta")
    assert page is not None
    assert len(set(wiki.asked[:4])) == 1


@SERVERS
def test_an_answer_whose_connection_breaks_is_asked_for_again(wiki: FakeWiki, kind: str) -> None:
    wiki.torn = 2
    page = served(wiki, kind).backend.page("Delta")
    assert page == Page("Delta", "Delta is a page.", tuple(WIKI["Delta"]))
    assert len(set(wiki.asked[:3])) == 1


@SERVERS
def test_a_server_that_keeps_failing_is_an_infrastructure_error(wiki: FakeWiki, kind: str) -> None:
    wiki.failures = 100
    with pytest.raises(UnreachableError, match=rf"{wiki.url}.* does not answer: .*503.*'graph'"):
        served(wiki, kind).reset(seed=0)
    assert len(wiki.asked) == 5


@SERVERS
def test_a_reset_that_fails_leaves_no_game_to_go_on_with(wiki: FakeWiki, kind: str) -> None:
    env = served(wiki, kind)
    env.reset(seed=0)
    wiki.failures = 100
    with pytest.raises(UnreachableError):
        env.reset()
    wiki.failures = 0
    with pytest.raises(ResetNeededError):
        go(env, "Beta")


@SERVERS
def test_a_server_that_is_not_there_is_named(kind: str) -> None:
    nobody = FakeWiki(url="http://127.0.0.1:9")
    env = served(nobody, kind)
    with pytest.raises(UnreachableError, match=r"http://127.0.0.1:9.* does not answer: .*refused"):
        env.reset(seed=0)


@SERVERS
def test_a_slow_server_is_given_up(
    wiki: FakeWiki, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gem.envs.games.wiki_backends._DEADLINE_S", 0.2)
    wiki.delay_s = 0.5
    with pytest.raises(UnreachableError, match="does not answer: .*(timed out|slow)"):
        served(wiki, kind).reset(seed=0)
    assert len(wiki.asked) <= 2


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b"[]", b"\xff\xfe"])
def test_something_that_is_no_wiki_is_said(wiki: FakeWiki, body: bytes) -> None:
    wiki.body = body
    with pytest.raises(UnreachableError, match="no JSON|not the API of a wiki"):
        served(wiki, "mw").reset(seed=0)


def test_an_error_of_the_wiki_is_passed_on(wiki: FakeWiki) -> None:
    wiki.body = b'{"error": {"code": "readapidenied", "info": "You need permission."}}'
    with pytest.raises(UnreachableError, match="refuses: You need permission"):
        served(wiki, "mw").reset(seed=0)


@SERVERS
@pytest.mark.parametrize("cached", [False, True])
def test_answers_are_kept_only_when_asked_for(wiki: FakeWiki, kind: str, cached: bool) -> None:
    backend = served(wiki, kind, query_use_cache=cached).backend
    backend.page("Alpha")
    before = len(wiki.asked)
    assert backend.page("Alpha") == Page("Alpha", "Alpha is a page.", tuple(WIKI["Alpha"]))
    assert (len(wiki.asked) == before) is cached


@SERVERS
def test_nothing_is_asked_before_the_first_reset(wiki: FakeWiki, kind: str) -> None:
    pickle.loads(pickle.dumps(served(wiki, kind)))
    assert wiki.asked == []
