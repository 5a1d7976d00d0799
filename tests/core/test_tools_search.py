"""The search tool, its index, its server and both protocols."""

from __future__ import annotations

import http.server
import itertools
import json
import math
import pickle
import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import settles

import gem
from gem.__main__ import main
from gem.errors import ConfigurationError, DataError, MissingExtraError, UnreachableError
from gem.tools import SearchTool, ToolCall
from gem.tools.search_client import ask_cached, hits_of
from gem.tools.search_index import Index, build, open_index, passages_of
from gem.tools.search_server import SearchServer

pytest.importorskip("bm25s")

QUERY = ToolCall("search", {"query": "capital of France"})


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server over the bundled passages."""
    with SearchServer(open_index("sample")) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def answering(answer: Callable[[int, Any], tuple[int, bytes]]) -> Any:
    """A server whose n-th answer is `answer(n, handler)`: status and body."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            made.count += 1
            status, body = answer(made.count, self)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        count = 0

        @property
        def url(self) -> str:
            return f"http://127.0.0.1:{self.server_port}/retrieve"

        def __enter__(self) -> Any:
            threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
            return self

        def __exit__(self, *exc: object) -> None:
            self.shutdown()
            self.server_close()

    made = Server(("127.0.0.1", 0), Handler)
    return made


GOOD = json.dumps({"result": [[{"document": {"contents": '"T"\ntext'}, "score": 1}]]}).encode()

WORDS = ["red", "green", "blue", "old", "new", "house", "boat", "tree"]


def by_definition(passages: list[str], query: str) -> list[tuple[int, float]]:
    """Passages that share a word with the query, by BM25 as Lucene has it (k1 1.5, b 0.75)."""
    documents = [re.findall(r"\w+", f"title title {text}") for text in passages]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for number, document in enumerate(documents):
        score = 0.0
        for word in dict.fromkeys(query.split()):
            having = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
            count = document.count(word)
            score += idf * count / (count + 1.5 * (0.25 + 0.75 * len(document) / mean))
        scores.append((number, score))
    return sorted((s for s in scores if s[1] > 0), key=lambda pair: (-round(pair[1], 5), pair[0]))


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6), min_size=1, max_size=300),
    st.lists(st.sampled_from([*WORDS, "unheard"]), min_size=1, max_size=4),
    st.integers(1, 12),
)
def test_the_index_ranks_by_bm25(texts: list[list[str]], query: list[str], topk: int) -> None:
    passages = [" ".join(words) for words in texts]
    rows = [{"title": "title", "text": text} for text in passages]
    hits = Index(*build(rows)).search(" ".join(query), topk)
    ranked = by_definition(passages, " ".join(query))
    expected = ranked[:topk]
    assert [round(hit.score, 3) for hit in hits] == pytest.approx(
        [score for _, score in expected], abs=2e-3
    )
    if len({round(score, 4) for _, score in expected}) != len(expected) or len(expected) != topk:
        return
    # Where other words make the score of the last, rounding decides which of them is the last.
    last = [texts[n] for n, score in ranked if abs(score - expected[-1][1]) < 1e-4]
    if len({tuple(sorted(words)) for words in last}) == 1:
        assert [hit.text for hit in hits] == [passages[number] for number, _ in expected]


@pytest.mark.parametrize(
    ("passage", "query"),
    [
        ("A café in São Paulo", "cafe sao"),
        ("A cafe in Sao Paulo", "CAFÉ"),
        ("The U.S.A. are a country", "USA"),
        ("The USA are a country", "U.S.A."),
        ("Made in the u.s. of old", "US U.S"),
        ("日本の首都は東京です", "首都"),
        ("대한민국의 수도는 서울이다", "수도"),
        ("ガラス", "ガラス"),
    ],
)
def test_accents_initials_and_scripts_without_spaces_are_found(passage: str, query: str) -> None:
    rows = [{"title": "", "text": text} for text in ("another text", passage, "and one more")]
    assert [hit.text for hit in Index(*build(rows)).search(query, 1)] == [passage]


@pytest.mark.parametrize("topk", [1, 5, 24])
def test_of_passages_with_equal_scores_the_earlier_ones_come_first(topk: int) -> None:
    passages = [" ".join(words) for words in itertools.permutations(WORDS[:4])]
    hits = Index(*build([{"title": "title", "text": text} for text in passages])).search(
        "red", topk
    )
    assert [hit.text for hit in hits] == passages[:topk]


@pytest.mark.parametrize("query", ["", "the of", "zzzz", "?!", "\ud800"])
def test_a_query_that_nothing_matches_is_told_so(query: str) -> None:
    assert SearchTool(index="sample").execute(ToolCall("search", {"query": query})).text == (
        "No passage was found."
    )


@pytest.mark.parametrize(
    ("query", "title", "words"),
    [
        ("What is the capital of France?", "France", "Capital: Paris"),
        ("highest point of Japan", "Japan, geography", "Mount Fuji"),
        ("exports of Chad", "Chad, economy", "cotton"),
    ],
)
def test_the_bundled_passages_answer_questions(query: str, title: str, words: str) -> None:
    best = open_index("sample").search(query, 1)[0]
    assert best.title == title
    assert words in best.text


def test_the_bundled_passages_are_small_and_whole() -> None:
    path = Path(gem.__file__).parent / "data" / "factbook.jsonl"
    assert path.stat().st_size < 300_000
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len({row["title"] for row in rows}) == len(rows) == len(open_index("sample"))
    assert all(len(row["text"]) > 20 and row["text"][-1] in ".!?" for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        "I look it up. <search>capital of France</search> Then",
        "<search>\n capital  of\nFrance </search>",
        '<tool_call>{"name": "search", "arguments": {"query": "capital of France"}}</tool_call>',
    ],
)
def test_a_query_is_found_in_both_forms(text: str) -> None:
    assert SearchTool(index="sample").parse(text) == QUERY


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<search> </search>", "nothing to search for"),
        (f"<search>{'x' * 3000}</search>", "at most 2000 characters"),
        ('<tool_call>{"name": "search", "arguments": {"query": ["x"]}}</tool_call>', "a list"),
        ('<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>', '"query"'),
    ],
)
def test_a_query_that_cannot_be_asked_is_told(text: str, why: str) -> None:
    tool = SearchTool(index="sample")
    call = tool.parse(text)
    assert call is not None
    assert why in tool.execute(call).text
    assert not tool.execute(call).ok


def test_passages_are_numbered_and_shortened() -> None:
    tool = SearchTool(index="sample", topk=2, max_output=200)
    lines = tool.execute(QUERY).text
    assert lines.startswith("Doc 1(Title: France) Location: Western Europe")
    assert "\nDoc 2(Title: " in lines
    assert "characters left out" in lines
    call = tool.parse("<search>a b</search> <search>c</search>")
    assert call is not None
    assert call.ignored == 1


@pytest.mark.parametrize("path", ["/retrieve", "/inference"])
def test_a_server_finds_what_the_index_finds_in_both_protocols(server: str, path: str) -> None:
    tool = SearchTool(url=server + path, topk=3)
    assert tool.protocol == ("json" if path == "/retrieve" else "msgpack")
    assert tool.execute(QUERY) == SearchTool(index="sample").execute(QUERY)
    assert [hit.score for hit in tool.search("France")] == pytest.approx(
        [hit.score for hit in open_index("sample").search("France", 3)]
    )


def test_the_server_answers_many_queries_in_the_form_of_search_r1(server: str) -> None:
    body = json.dumps({"queries": ["France", "zzzz"], "topk": 1, "return_scores": True}).encode()
    request = urllib.request.Request(
        f"{server}/retrieve", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        [[france], nothing] = json.loads(response.read())["result"]
    assert nothing == []
    assert france["document"]["contents"].startswith('"France')
    assert france["score"] > 0


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"queries": "x"}', b'{"query": 3}', b'{"query": "x", "topk": 0}']
)
def test_the_server_refuses_what_is_no_query(server: str, body: bytes) -> None:
    request = urllib.request.Request(
        server, data=body, headers={"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    assert caught.value.code == 400
    assert json.loads(caught.value.read())["error"]
    caught.value.close()


@settings(max_examples=100)
@given(st.binary(max_size=40) | st.just(b"\x91" * 100_000))
def test_nonsense_instead_of_messagepack_is_an_error_of_the_value(body: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        hits_of("msgpack", body)


def test_messagepack_of_the_original_is_read() -> None:
    # {"result": [{"document": {"contents": '"T"\ntext'}, "score": 1.5}]}
    body = "81a6726573756c749182a8646f63756d656e7481a8636f6e74656e7473a8225422 0a74657874"
    [hit] = hits_of("msgpack", bytes.fromhex(body + "a573636f7265cb3ff8000000000000"))
    assert hit == ("T", "text", 1.5)


def test_without_msgpack_both_sides_of_that_protocol_say_what_to_install(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    tool = SearchTool(url=f"{server}/inference", cache=False)
    for call in (tool.reset, lambda: tool.execute(QUERY)):
        with pytest.raises(MissingExtraError, match=r"gem-core\[search\]"):
            call()
    SearchTool(url=f"{server}/retrieve").reset()
    request = urllib.request.Request(
        server, data=b"\x80", headers={"Content-Type": "application/msgpack"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    assert caught.value.code == 415
    assert "gem-core[search]" in json.loads(caught.value.read())["error"]
    caught.value.close()


def test_a_server_that_recovers_is_asked_again() -> None:
    with answering(lambda n, _: (503, b"") if n < 3 else (200, GOOD)) as busy:
        assert SearchTool(url=busy.url, retries=2).execute(QUERY).text == "Doc 1(Title: T) text"
        assert busy.count == 3


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>", b"[]", b'{"result": 3}', b'{"result": [[3]]}', b"\xff\xfe"),
        *(b'{"result": [[{"document": {"contents": 3}}]]}', b"[" * 100_000),
    ],
)
def test_a_server_that_speaks_nonsense_is_an_infrastructure_failure(body: bytes) -> None:
    with (
        answering(lambda n, _: (200, body)) as odd,
        pytest.raises(UnreachableError, match=r"search server http://.*protocol 'json'"),
    ):
        SearchTool(url=odd.url, cache=False).execute(QUERY)


def test_a_server_that_is_slow_gone_or_refuses_is_an_infrastructure_failure() -> None:
    release = threading.Event()

    def slow(n: int, handler: Any) -> tuple[int, bytes]:
        release.wait(10)
        return 200, GOOD

    with answering(slow) as server:
        tool = SearchTool(url=server.url, timeout_s=0.05, retries=1)
        with pytest.raises(UnreachableError, match="timed out"):
            tool.execute(QUERY)
        # The server may count a request after the client has given it up.
        settles(lambda: server.count == 2)
        assert server.count == 2
        release.set()
    with pytest.raises(UnreachableError, match="refused"):
        SearchTool(url=server.url, retries=0, cache=False).execute(QUERY)
    with (
        answering(lambda n, _: (404, b"")) as wrong,
        pytest.raises(UnreachableError, match="answers 404"),
    ):
        SearchTool(url=wrong.url, retries=5).execute(QUERY)
    assert wrong.count == 1


def test_answers_are_remembered_and_failures_are_not() -> None:
    ask_cached.cache_clear()
    with answering(lambda n, _: (404, b"") if n == 1 else (200, GOOD)) as server:
        tool = SearchTool(url=server.url, retries=0)
        with pytest.raises(UnreachableError):
            tool.execute(QUERY)
        assert [tool.execute(QUERY).ok for _ in range(3)] == [True] * 3
        assert server.count == 2
        SearchTool(url=server.url, cache=False).execute(QUERY)
        assert server.count == 3


def test_without_an_index_or_a_server_construction_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEARCH_URL", raising=False)
    with pytest.raises(ConfigurationError, match=r"index='sample'.*SEARCH_URL is not set"):
        gem.make("qa:NaturalQuestions", source="sample", tools=["search"])
    with pytest.raises(ConfigurationError, match="both were given"):
        SearchTool(index="sample", url="http://127.0.0.1/retrieve")
    with pytest.raises(ConfigurationError, match=r"url must be an http\(s\) address"):
        SearchTool(url="ftp://127.0.0.1")
    monkeypatch.setenv("SEARCH_URL", "http://127.0.0.1:9/inference")
    assert SearchTool().protocol == "msgpack"


@pytest.mark.parametrize(
    "given", [{"protocol": "json"}, {"timeout_s": 9.0}, {"retries": 0}, {"cache": False}]
)
def test_a_servers_parameters_are_refused_with_an_index(given: dict[str, Any]) -> None:
    [name] = given
    with pytest.raises(ConfigurationError, match=f"{name}=.* is for a search server"):
        SearchTool(index="sample", **given)


def test_without_bm25s_a_local_index_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(MissingExtraError, match=r"gem-core\[search\]"):
        build([{"title": "", "text": "x"}])


def corpus(folder: Path, *lines: str) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


GOOD_LINES = (
    '{"title": "Apples", "text": "red fruit"}',
    '{"id": 7, "contents": "\\"Boats\\"\\nthey swim \\ud800"}',
    '{"text": "a line without title"}',
    "",
)


def test_a_written_index_finds_what_one_in_memory_finds(tmp_path: Path) -> None:
    path = corpus(tmp_path, *GOOD_LINES)
    out = tmp_path / "index"
    assert main(["search", "build", str(path), str(out)]) == 0
    for query in ("red", "boats swim", "line"):
        found = SearchTool(index=str(out)).search(query)
        assert found == SearchTool(index=str(path)).search(query)
        assert len(found) == 1
    assert SearchTool(index=str(out)).search("boats")[0][:2] == ("Boats", "they swim ?")
    assert main(["search", "query", str(out), "apples"]) == 0
    assert main(["search", "query", str(out), "zzzz"]) == 1


def test_a_broken_line_is_refused_with_its_number_or_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = corpus(tmp_path, *GOOD_LINES, '{"title": "x"}', "{", "[]")
    out = tmp_path / "index"
    assert main(["search", "build", str(path), str(out)]) == 2
    assert f"{path}, line 5: needs 'text'" in capsys.readouterr().err
    assert not out.exists()
    assert main(["search", "build", str(path), str(out), "--skip-broken"]) == 0
    told = capsys.readouterr()
    assert "3 broken lines skipped" in told.err
    assert "line 6" in told.err
    assert "3 passages" in told.out
    assert main(["search", "build", str(path), str(out)]) == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize("lines", [(), ("", " "), ('{"text": "the"}',)])
def test_a_corpus_without_words_is_refused(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="nothing to search for"):
        SearchTool(index=corpus(tmp_path, *lines)).reset()


def test_a_missing_or_damaged_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="search build"):
        SearchTool(index=tmp_path / "none").reset()
    out = tmp_path / "index"
    main(["search", "build", str(corpus(tmp_path, *GOOD_LINES)), str(out)])
    (out / "corpus.jsonl").write_text(GOOD_LINES[0])
    with pytest.raises(DataError, match="incomplete"):
        SearchTool(index=out).reset()


def test_bytes_that_are_no_text_are_a_broken_line() -> None:
    with pytest.raises(DataError, match=r"^f, line 2: "):
        list(passages_of([b'{"text": "x"}', b'{"text": "\xff"}'], "f"))


def test_copies_share_the_index_and_nothing_else() -> None:
    tool = SearchTool(index="sample")
    assert len(pickle.dumps(tool)) < 1000
    assert open_index("sample") is open_index("sample")
    assert tool.spawn().search("France") == tool.search("France")


def test_an_episode_whose_reward_depends_on_the_search() -> None:
    rows = [{"problem": "What is the capital of Chad?", "answer": "N'Djamena"}]
    from gem.envs.qa import QaEnv
    from gem.wrappers import ToolEnv

    env = ToolEnv(QaEnv(rows), {"name": "search", "index": "sample"})
    observation, _ = env.reset(seed=0)
    assert "<search> </search>" in observation
    found, *_ = env.step("<search>capital of Chad</search>")
    answer = re.search(r"Capital: ([^.]+)\.", str(found))
    assert answer is not None
    assert env.step(f"<answer>{answer[1]}</answer>")[1] == 1.0


def test_the_bundled_corpus_answers_the_bundled_questions() -> None:
    env = gem.make(
        "qa:NaturalQuestions",
        source="sample:factbook",
        answer_format="boxed",
        eval=True,
        tools=[{"name": "search", "index": "sample", "topk": 1}],
    )
    for seed in range(105):
        question, info = env.reset(seed=seed)
        country = re.findall(r"What is the area of (.+) in sq km\?", str(question))[0]
        passage, *_ = env.step(f"<search>area of {country}</search>")
        area = re.findall(r"Area: ([\d,]+) sq km", str(passage))[0]
        assert info["index"] == seed
        assert env.step(f"\\boxed{{{area}}}")[1] == 1.0
