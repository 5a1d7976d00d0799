"""Tasks in a box of one of Harbor's providers: real Harbor, whose provider is a box of ours."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from boxes_attacks import FINISH, call, played, solved, write_task
from processes import below, settles

import gem
from gem.blame import cause_of
from gem.core import Env
from gem.errors import ConfigurationError, UnknownParameterError, UnreachableError
from gem_box.images import imported
from gem_box.provided import PYTHON, ProvidedBox
from gem_box.sample import write_sample

HARBOR = Path(__file__).parents[2] / ".venvs" / "harbor" / "bin" / "python"
PROVIDER = "gem_box.provider:BoxEnvironment"

real = [
    pytest.mark.nightly,
    pytest.mark.skipif(not HARBOR.exists(), reason="needs Harbor: make env-harbor"),
]


@pytest.fixture(autouse=True)
def harbor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, str(HARBOR))
    monkeypatch.setenv("GEM_BOX_IMAGE", "host")


@pytest.fixture
def env(tmp_path: Path) -> Iterator[Env]:
    """The task whose answer is 84, in a box of the provider."""
    folder = write_task(tmp_path / "task", "host")
    with gem.make(f"harbor:{folder}", box=PROVIDER, command_s=3) as env:
        yield env


def inner(env: Env) -> Any:
    return env.unwrapped


def test_without_harbor_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_task(tmp_path / "task", "host")
    monkeypatch.delenv(PYTHON)
    env = gem.make(f"harbor:{folder}?box=docker")
    with pytest.raises(ConfigurationError, match=f"pip install harbor.*{PYTHON}"):
        env.reset(seed=0)
    monkeypatch.setenv(PYTHON, "/bin/false")
    with pytest.raises(ConfigurationError, match="box=docker: Harbor is gone"):
        env.reset(seed=0)


@pytest.mark.parametrize("name", ["image", "verifier", "memory_mb", "disk_mb", "processes", "cpus"])
def test_what_only_our_boxes_have_cannot_be_given(tmp_path: Path, name: str) -> None:
    folder = write_task(tmp_path / "task", "host")
    with pytest.raises(UnknownParameterError, match=name):
        gem.make(f"harbor:{folder}", box="docker", **{name: 1})


def test_tasks_that_no_box_of_ours_runs_are_harbors_business(tmp_path: Path) -> None:
    toml = "[environment]\ngpus = 1\n[agent]\nuser = 'node'\n"
    texts = {"tests__test_sh": "pip install pytest\n", "environment__compose_yaml": "services:\n"}
    folder = write_task(tmp_path / "task", "some:image", task_toml=toml, **texts)
    with pytest.raises(ConfigurationError, match="cannot run in a box"):
        gem.make(f"harbor:{folder}")
    gem.make(f"harbor:{folder}?box=docker").close()
    (folder / "instruction.md").unlink()
    with pytest.raises(ConfigurationError, match=r"instruction\.md: No such file"):
        gem.make(f"harbor:{folder}?box=docker")


@pytest.mark.parametrize("provider", ["none", "no.such.module:Class"])
@pytest.mark.parametrize("marker", [pytest.param(None, marks=real)])
def test_a_provider_that_cannot_be_used_is_refused(
    tmp_path: Path, provider: str, marker: None
) -> None:
    folder = write_task(tmp_path / "task", "host")
    with (
        gem.make(f"harbor:{folder}", box=provider) as env,
        pytest.raises(ConfigurationError, match=f"box={provider}: .*Error"),
    ):
        env.reset(seed=0)


_FAKE = """
import json, sys
def main(*_):
    say(0, ready=True)
    begun = set()
    for line in sys.stdin:
        call = json.loads(line)
        if call["do"] == "begin":
            begun.add(call["box"])
        if call["box"] not in begun:
            say(call["box"], failed="no trial has begun")
        elif call["do"] == "run":
            say(call["box"], output=(call["script"].find("slow") > 0) * "late" + "\\ngem 0 0 4")
        elif call["do"] == "finish":
            say(call["box"], ended=True, rewards={"reward": 10**400}, error="", output="said")
        else:
            say(call["box"], **{"begin": {"begun": True}, "drop": {"dropped": True}}[call["do"]])
def say(box, **answer):
    print(json.dumps({"box": box, **answer}), flush=True)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProvidedBox]:
    """A box of something that speaks as Harbor does."""
    (tmp_path / "harbored.py").write_text(_FAKE)
    monkeypatch.setattr("gem_box.provided._THEIRS", tmp_path)
    monkeypatch.setenv(PYTHON, sys.executable)
    box = ProvidedBox("none")
    box.start(tmp_path)
    yield box
    box.close()


def test_an_answer_that_nobody_waited_for_is_not_that_of_the_next_command(
    fake: ProvidedBox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object) -> dict[str, object]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fake._harbor, "answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fake.run("slow", 10)
    with pytest.raises(UnreachableError, match="no trial has begun"):
        fake.run("fast", 10)
    fake.start(tmp_path)
    assert fake.run("fast", 10).output == b""
    assert fake.run("slow", 10).output == b"late"


def test_a_reward_that_is_no_finite_number_is_0(fake: ProvidedBox) -> None:
    graded = fake.graded(10, None, "task")
    assert (graded.reward, graded.output) == (0.0, "said")
    assert "no finite number" in graded.reason


class TestReal:
    """In real Harbor."""

    pytestmark = real

    def test_solutions_earn_1_and_doing_nothing_0(self, tmp_path: Path) -> None:
        write_sample(tmp_path)
        with gem.make(f"harbor:{tmp_path}?eval=true", box=PROVIDER) as env:
            assert len(inner(env).tasks) >= 25
            for idx, task in enumerate(inner(env).tasks):
                earned = solved(env, idx), played(env, idx=idx)[0]
                assert earned == (1.0, 0.0), task.name
        assert settles(lambda: not [p for p in below(os.getpid()) if "harbored" in command(p)])

    def test_the_next_command_goes_on_where_the_last_one_was(self, env: Env) -> None:
        env.reset(seed=0)
        env.step(call("cd /tmp; x='a b'; f() { echo $x $1; }; export Y=2; set +e; readonly R=1"))
        assert env.step(call("f c; pwd; echo $Y"))[0] == "a b c\n/tmp\n2\n[exit code 0]"
        assert env.step(call("echo to error >&2; (exit 3)"))[0] == "to error\n[exit code 3]"
        assert env.step(call("exit 4"))[0] == "[exit code 4]"
        assert env.step(call('echo "it\'s" $Y; echo gem 0 0 0'))[0] == (
            "it's 2\ngem 0 0 0\n[exit code 0]"
        )
        assert env.step(call("sleep 60 & echo in the background"))[0].startswith("in the back")
        said = env.step(call("head -c 3000000 /dev/zero | tr '\\0' x"))[0]
        assert len(str(said)) < 5000 and "[exit code 0]" in str(said)
        assert "hit the limit of time" in str(env.step(call("sleep 60"))[0])
        assert env.step(call("pwd"))[0] == "/tmp\n[exit code 0]"

    @pytest.mark.parametrize("destroyed", ["timeout wc head", "bash sh"])
    def test_a_policy_that_destroys_the_shell_has_no_void_episode(
        self, tmp_path: Path, archive: Path, destroyed: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("GEM_BOX_IMAGE")
        imported("small:1", archive)
        folder = write_task(tmp_path / "task", "small:1")
        with gem.make(f"harbor:{folder}", box=PROVIDER) as env:
            env.reset(seed=0)
            env.step(call(f"cd /usr/bin; rm {destroyed}"))
            assert str(env.step(call("echo hello"))[0]).endswith(
                "[exit code 127; the shell has ended, the next command has a new one]"
            )
            _, reward, terminated, _, info = env.step(FINISH)
            assert (reward, terminated) == (0.0, True) and not info["success"]

    def test_an_answer_that_comes_too_late_is_none_to_a_later_call(
        self, env: Env, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        env.reset(seed=0)
        monkeypatch.setattr("gem_box.provided._MORE_S", -62.0)
        with pytest.raises(UnreachableError, match="does not answer within 1 s"):
            env.step(call("sleep 2"))
        monkeypatch.undo()
        os.environ.update({PYTHON: str(HARBOR), "GEM_BOX_IMAGE": "host"})
        assert solved(env) == 1.0

    def test_rewards_are_harbors(self, tmp_path: Path) -> None:
        partial = '#!/bin/bash\n[ "$(cat answer.txt)" = 84 ] && r=0.25 || r=-1\n'
        partial += 'echo "{\\"reward\\": $r, \\"other\\": 3}" > /logs/verifier/reward.json\n'
        folder = write_task(tmp_path / "partial", "host", tests__test_sh=partial)
        with gem.make(f"harbor:{folder}", box=PROVIDER) as env:
            assert (solved(env), played(env)[0]) == (0.25, -1.0)
        with gem.make(f"harbor:{folder}", box=PROVIDER, reward_key="other") as env:
            assert played(env)[0] == 3.0
        with gem.make(f"harbor:{folder}", box=PROVIDER, reward_key="third") as env:
            env.reset(seed=0)
            with pytest.raises(ConfigurationError, match="none is named 'third'"):
                env.step(FINISH)
        for name, said in {
            "true": "No reward file found",
            "echo x > /logs/verifier/reward.txt": "",
        }.items():
            write_task(folder, "host", tests__test_sh=f"#!/bin/bash\n{name}\n")
            with gem.make(f"harbor:{folder}", box=PROVIDER) as env:
                reward, info = played(env)
                assert reward == 0.0 and str(info["graded"]).startswith(said) and info["graded"]

    def test_what_harbor_fails_at_is_no_reward(self, tmp_path: Path) -> None:
        toml = "[verifier]\ntimeout_sec = 1\n"
        texts = {"task_toml": toml, "tests__test_sh": "#!/bin/bash\nsleep 60\n"}
        folder = write_task(tmp_path / "slow", "host", **texts)
        with gem.make(f"harbor:{folder}", box=PROVIDER) as env:
            env.reset(seed=0)
            with pytest.raises(UnreachableError, match="no verdict: VerifierTimeoutError") as error:
                env.step(FINISH)
            assert cause_of(error.value) == "sandbox"
            # Harbor goes on.
            assert "Write 84" in str(env.reset(seed=0)[0])
        folder = write_task(tmp_path / "broken", "missing:image")
        os.environ.pop("GEM_BOX_IMAGE")
        with gem.make(f"harbor:{folder}", box=PROVIDER) as env:
            with pytest.raises(UnreachableError, match="missing:image") as error:
                env.reset(seed=0)
            assert cause_of(error.value) == "sandbox"

    def test_a_harbor_that_is_killed_is_told_and_the_next_episode_has_a_new_one(
        self, env: Env
    ) -> None:
        env.reset(seed=0)
        os.killpg(inner(env)._provided._harbor.process.pid, signal.SIGKILL)
        with pytest.raises(UnreachableError, match="Harbor is gone") as error:
            env.step(call("true"))
        assert cause_of(error.value) == "sandbox"
        assert solved(env) == 1.0

    def test_environments_of_a_process_share_harbor_and_play_at_once(self, tmp_path: Path) -> None:
        folder = write_task(tmp_path / "task", "host")
        envs = [gem.make(f"harbor:{folder}", box=PROVIDER) for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(solved, envs)) == [1.0] * 4
            assert len({inner(env)._provided._harbor for env in envs}) == 1
            # One that is closed in mid-episode takes nothing from the others.
            list(threads.map(lambda env: env.reset(seed=0), envs))
            envs[0].close()
            assert list(threads.map(solved, envs[1:])) == [1.0] * 3
        for env in envs:
            env.close()

    def test_a_copy_plays_the_actions_again(self, env: Env) -> None:
        env.reset(seed=0)
        env.step(call("echo 84 > /app/answer.txt"))
        with env.spawn(same_state=True) as twin:
            assert twin.step(FINISH)[1] == 1.0
        assert env.step(FINISH)[1] == 1.0


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
