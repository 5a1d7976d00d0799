"""The live page's server: it tells what is new, sends no files, and survives what it reads."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_bench import live as live_module
from gem_bench.live import Live, runs_in, serve
from gem_train.record import EPISODES, METRICS, Recorder

MakeRun = Callable[..., Path]


class Clock:
    """Each look is later than the one before."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def follow(*paths: Path, **options: Any) -> Live:
    return Live(paths, clock=Clock(), **options)


@contextmanager
def served(live: Live) -> Iterator[int]:
    """Serve in a thread; yield the port."""
    there = threading.Event()
    found: list[Any] = []

    def ready(address: str, server: Any) -> None:
        found.extend((address, server))
        there.set()

    thread = threading.Thread(target=serve, args=(live,), kwargs={"port": 0, "ready": ready})
    thread.start()
    assert there.wait(30)
    try:
        yield int(found[0].rstrip("/").rpartition(":")[2])
    finally:
        found[1].shutdown()
        thread.join(30)


def get(
    port: int, path: str, host: str = "localhost", method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_a_page_is_told_what_is_new_and_nothing_twice(make_run: MakeRun) -> None:
    folder = make_run(iterations=3)
    live = follow(folder, episodes=100)
    first = live.changes("", 0)
    assert len(first["episodes"]) == 24
    assert first["runs"][0]["splits"]["train"]["iteration"] == [0, 1, 2]
    assert "parity-table" in first["parts"]
    again = live.changes(first["layout"], first["revision"])
    assert (again["runs"], again["episodes"]) == ([], [])
    assert "parity-table" not in again["parts"]
    Recorder(folder).metrics(3, {"success_rate": 1.0})
    lines = (folder / EPISODES).read_text().splitlines()
    with (folder / EPISODES).open("a") as file:
        file.write(json.dumps({**json.loads(lines[0]), "iteration": 3}) + "\n")
    news = live.changes(again["layout"], again["revision"])
    assert news["runs"][0]["splits"]["train"]["iteration"] == [0, 1, 2, 3]
    assert [each["iteration"] for each in news["episodes"]] == [3]
    assert news["first"] == {"0.0": 1}


def test_only_the_last_episodes_are_told(make_run: MakeRun) -> None:
    update = follow(make_run(iterations=3), episodes=5).changes("", 0)
    assert [each["iteration"] for each in update["episodes"]] == [2] * 5
    assert update["first"] == {"0.0": 1}


def test_long_episodes_are_fewer_but_at_least_one(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(iterations=2)
    monkeypatch.setattr(live_module, "MOST_TOKENS", 1)
    assert len(follow(folder).changes("", 0)["episodes"]) == 1
    monkeypatch.setattr(live_module, "MOST_TOKENS", 500)
    assert 1 < len(follow(folder).changes("", 0)["episodes"]) < 16


def test_a_run_that_begins_later_gives_everything_a_new_order(
    make_run: MakeRun, tmp_path: Path
) -> None:
    live = follow(tmp_path / "runs")
    empty = live.changes("", 0)
    assert (empty["groups"], empty["episodes"]) == ([], [])
    assert "Nothing is recorded yet." in empty["parts"]["summary"]
    assert "waiting" in empty["parts"]["table"]
    make_run("verl")
    one = live.changes(empty["layout"], empty["revision"])
    assert [group["label"] for group in one["groups"]] == ["verl"]
    make_run("reference")
    both = live.changes(one["layout"], one["revision"])
    assert both["layout"] != one["layout"]
    assert [group["label"] for group in both["groups"]] == ["reference", "verl"]
    assert {each["group"] for each in both["episodes"]} == {0, 1}


def test_a_page_of_an_earlier_server_is_told_everything(make_run: MakeRun) -> None:
    folder = make_run()
    earlier = follow(folder).changes("", 0)
    assert follow(folder).changes(earlier["layout"], 10**9)["episodes"] != []


def test_a_resumed_run_takes_back_what_it_does_again(make_run: MakeRun) -> None:
    folder = make_run(iterations=6)
    live = follow(folder)
    first = live.changes("", 0)
    Recorder(folder).rewind(2)
    news = live.changes(first["layout"], first["revision"])
    assert news["runs"][0]["splits"]["train"]["iteration"] == [0, 1]
    told = {each["number"] for each in first["episodes"]}
    assert told.isdisjoint(each["number"] for each in news["episodes"])
    assert news["first"]["0.0"] > max(told)


def test_damage_is_named_on_the_page_and_texts_are_escaped(make_run: MakeRun) -> None:
    folder = make_run()
    with (folder / METRICS).open("a") as file:
        file.write('{"iteration": 99, "split": "eval:<script>alert(1)</script>"\n')
        file.write('{"iteration": 99, "split": "eval:<b>", "time_s": 1.0, "success_rate": 1.0}\n')
    table = follow(folder).changes("", 0)["parts"]["table"]
    assert f"{METRICS}, line 13 is damaged" in table
    assert "evaluation &lt;b&gt;: success 1.000" in table
    assert "<script>" not in table
    assert "<b>" not in table


def test_many_pages_cost_one_look(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    monkeypatch.setattr(live_module, "runs_in", lambda path: looks.append(path) or [path])
    live = Live([make_run()], clock=lambda: 5.0)
    for _ in range(5):
        live.changes("", 0)
    assert len(looks) == 1


def test_more_runs_than_colours_are_left_out_and_said(tmp_path: Path) -> None:
    for i in range(live_module.MOST_RUNS + 3):
        Recorder(tmp_path / f"{i:03}").metrics(0, {"success_rate": 0.5})
    update = follow(tmp_path).changes("", 0)
    assert len(update["runs"]) == live_module.MOST_RUNS
    assert "3 more runs are left out" in update["parts"]["table"]


def test_a_folder_stands_for_the_runs_in_it(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("a"), make_run("b")]
    (tmp_path / "runs" / "notes").mkdir()
    assert runs_in(tmp_path / "runs") == runs
    assert runs_in(runs[0]) == [runs[0]]
    assert runs_in(tmp_path / "none") == [tmp_path / "none"]


def test_curves_of_any_length_are_bounded(tmp_path: Path) -> None:
    line = '{{"iteration": {0}, "split": "train", "time_s": {0}.0, "success_rate": {1}}}\n'
    text = "".join(line.format(i, i % 2) for i in range(5000))
    tmp_path.joinpath(METRICS).write_text(text)
    curve = follow(tmp_path).changes("", 0)["runs"][0]["splits"]["train"]
    assert len(curve["iteration"]) == 1667
    assert (curve["iteration"][0], curve["iteration"][-1]) == (2, 4999)
    assert curve["columns"]["success_rate"][:2] == pytest.approx([1 / 3, 2 / 3], abs=1e-4)


def test_the_server_has_a_page_and_data_and_nothing_else(make_run: MakeRun) -> None:
    folder = make_run()
    with served(follow(folder)) as port:
        status, headers, page = get(port, "/")
        assert status == 200
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert b"connect-src 'self'" in page
        status, headers, body = get(port, "/data?layout=x&since=junk")
        assert (status, headers["Cache-Control"]) == (200, "no-store")
        assert len(json.loads(body)["groups"]) == 1
        status, headers, body = get(port, "/", method="HEAD")
        assert (status, body) == (200, b"")
        assert int(headers["Content-Length"]) > 1000
        for path in (
            *("/run.json", "/../run.json", "/data/../run.json", "/%2e%2e/run.json", "//run.json"),
            *(f"/{folder}/run.json", "/etc/passwd", "/data/"),
        ):
            assert get(port, path)[0] == 404, path
        assert get(port, "/", method="POST")[0] == 501


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost", 200), ("127.0.0.1:80", 200), ("[::1]:80", 200), ("LOCALHOST:1", 200)),
        *(("evil.example", 403), ("localhost.evil.example:80", 403), ("", 403)),
    ],
)
def test_another_sites_name_for_this_machine_gets_nothing(
    make_run: MakeRun, host: str, status: int
) -> None:
    with served(follow(make_run())) as port:
        assert get(port, "/data", host)[0] == status


def test_half_characters_of_a_reply_do_not_end_the_server(make_run: MakeRun) -> None:
    folder = make_run(iterations=1, model=Path("/nowhere"))
    content = (folder / EPISODES).read_text()
    (folder / EPISODES).write_text(content.replace('"You won."', r'"\ud800 won"'))
    with served(follow(folder)) as port:
        assert b" won" in get(port, "/data")[2]


def test_a_port_that_is_taken_is_named(make_run: MakeRun) -> None:
    live = follow(make_run())
    with served(live) as port, pytest.raises(ConfigurationError, match=f"port {port}.*--port"):
        serve(live, port=port, ready=lambda address, server: server.shutdown())
