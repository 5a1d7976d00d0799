"""Environments `harbor:DIR`: the sample's tasks, attacks on rewards, what counts as what."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from boxes_attacks import ATTACKS, FINISH, LINK_TO_HOST, played, solved, write_task

import gem
from gem.blame import cause_of
from gem.errors import ConfigurationError, UnknownParameterError, UnreachableError
from gem_box.box import PATH
from gem_box.cli import main as harbor
from gem_box.env import HarborEnv, call
from gem_box.images import imported
from gem_box.sample import sample_folder
from gem_box.watching import descendants
from gem_check import check_env

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sample() -> Iterator[HarborEnv]:
    with gem.make("harbor:sample") as env:
        assert isinstance(env, HarborEnv)
        yield env


def test_the_solution_of_each_task_earns_1_and_doing_nothing_0(sample: HarborEnv) -> None:
    assert len(sample.tasks) >= 25
    for idx, task in enumerate(sample.tasks):
        assert solved(sample, idx) == 1.0, task.name
        assert played(sample, idx=idx)[0] == 0.0, task.name


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_earns_nothing(tiny: str, tmp_path: Path, attack: str) -> None:
    with gem.make(f"harbor:{write_task(tmp_path, tiny)}") as env:
        assert solved(env) == 1.0
        assert played(env, ATTACKS[attack])[0] == 0.0


_TOOL = (
    "mkdir -p /opt/venv/bin /opt/venv/lib && echo 'got=$(cat /app/answer.txt)' > /opt/venv/lib/got "
    "&& printf '#!/bin/bash\\n. /opt/venv/lib/got; echo $got\\n' > /opt/venv/bin/got && "
    "chmod 755 /opt/venv/bin/got && ln -s venv /opt/current"
)
_FORGE = "printf '#!/bin/bash\\necho 84' > /opt/venv/bin/got; chmod 755 /opt/venv/bin/got"


@pytest.mark.parametrize(
    "attack",
    [
        _FORGE,
        "cp /usr/bin/bash /opt/venv/bin/cat; printf 'got=84\\n' > /opt/venv/lib/got",
        f"rm -r /opt/venv; mkdir -p /opt/venv/bin; {_FORGE}",
        f"cp -r /opt/venv /elsewhere; rm -r /opt/venv; ln -s /elsewhere /opt/venv; {_FORGE}",
        f"rm /opt/current; cp -r /opt/venv /opt/current; {_FORGE.replace('venv', 'current')}",
        f"cp -r /opt /elsewhere; rm -r /opt; ln -s /elsewhere /opt; {_FORGE}",
    ],
    ids=["program", "loaded", "folder anew", "link", "link replaced", "link above"],
)
def test_the_tests_find_the_images_programs_also_outside_of_the_system(
    tiny: str, tmp_path: Path, attack: str
) -> None:
    dockerfile = f"FROM {tiny}\nENV PATH=/opt/current/bin:$PATH\nWORKDIR /app\nRUN {_TOOL}\n"
    test = '#!/bin/bash\n[ "$(got)" = 84 ] && echo 1 > /logs/verifier/reward.txt\n'
    task = write_task(
        tmp_path,
        tiny,
        environment__Dockerfile=dockerfile,
        tests__test_sh=test,
        solution__solve_sh="#!/bin/bash\necho 84 > answer.txt\n",
    )
    with gem.make(f"harbor:{task}") as env:
        assert solved(env) == 1.0
        assert played(env, "echo 83 > answer.txt", attack)[0] == 0.0


def test_the_folder_of_the_work_stays_and_the_tests_look_for_nothing_there(
    tiny: str, tmp_path: Path
) -> None:
    dockerfile = (
        f"FROM {tiny}\nENV PATH=/app:/app/bin:$PATH\nENV PYTHONPATH=/app/src\nWORKDIR /app\n"
        "RUN mkdir bin src lib; echo 1 > src/start\n"
    )
    test = (
        "#!/bin/bash\ncat /app/lib/new /app/src/start /app/bin/cat /app/cat\n"
        'echo "$PATH $PYTHONPATH"; echo 1 > /logs/verifier/reward.txt\n'
    )
    task = write_task(tmp_path, tiny, environment__Dockerfile=dockerfile, tests__test_sh=test)
    with gem.make(f"harbor:{task}") as env:
        write = "for each in lib/new src/start bin/cat cat; do echo $each > $each; chmod 755 $each;"
        _, info = played(env, f"{write} done")
    lines = str(info["tests"]).splitlines()
    assert lines[:2] == ["lib/new", "src/start"]
    assert "/app/bin/cat: No such file" in lines[2]
    assert lines[3:] == ["cat", "/app/bin:" + PATH + " "]


def test_forged_programs_earn_where_the_system_stays_as_it_is(tiny: str, tmp_path: Path) -> None:
    with gem.make(f"harbor:{write_task(tmp_path, tiny)}?verifier=shared") as env:
        assert solved(env) == 1.0
        assert played(env, ATTACKS["forged bash"])[0] == 1.0
        assert played(env, ATTACKS["forged tr"])[0] == 1.0


def test_auto_keeps_changes_of_the_system_only_where_the_solution_needs_it(
    tiny: str, tmp_path: Path
) -> None:
    write_task(tmp_path / "plain", tiny)
    test = "#!/bin/bash\ngrep -c '^new:' /etc/passwd > /logs/verifier/reward.txt\n"
    solve = "#!/bin/bash\necho new:x:1:1::/: >> /etc/passwd\n"
    write_task(tmp_path / "user", tiny, tests__test_sh=test, solution__solve_sh=solve)
    for verifier, user in {"pristine": 0.0, "shared": 1.0, "auto": 1.0, None: 0.0}.items():
        with gem.make(f"harbor:{tmp_path}", **({"verifier": verifier} if verifier else {})) as env:
            assert (solved(env, 0), solved(env, 1)) == (1.0, user), verifier
    with gem.make(f"harbor:{tmp_path}?verifier=auto") as env:
        assert played(env, ATTACKS["forged bash"], idx=0)[0] == 0.0
        assert [played(env, idx=idx)[1]["verifier"] for idx in (0, 1)] == ["pristine", "shared"]


def test_auto_asks_again_of_another_image_of_the_same_name(archive: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tar"
    shutil.copy(archive, other)
    with tarfile.open(other, "a") as tar:
        tar.addfile(tarfile.TarInfo("etc/new"))
    test = "#!/bin/bash\n[ -f /etc/new ] && echo 1 > /logs/verifier/reward.txt\n"
    solve = "#!/bin/bash\necho > /etc/new\n"
    task = write_task(tmp_path / "t", "twice:1", tests__test_sh=test, solution__solve_sh=solve)
    for source, mode in ((archive, "shared"), (other, "pristine")):
        imported("twice:1", source)
        with gem.make(f"harbor:{task}?verifier=auto") as env:
            assert (solved(env), played(env)[1]["verifier"]) == (1.0, mode)


def test_auto_asks_for_the_reward_that_is_chosen(tiny: str, tmp_path: Path) -> None:
    test = (
        "#!/bin/bash\nn=$(grep -c '^new:' /etc/passwd)\n"
        'echo "{\\"a\\": 1, \\"b\\": $n, \\"reward\\": 1}" > /logs/verifier/reward.json\n'
    )
    solve = "#!/bin/bash\necho new:x:1:1::/: >> /etc/passwd\n"
    task = write_task(tmp_path, tiny, tests__test_sh=test, solution__solve_sh=solve)
    for key, mode in {None: "pristine", "b": "shared", "a": "pristine"}.items():
        with gem.make(f"harbor:{task}?verifier=auto", reward_key=key) as env:
            assert (solved(env), played(env)[1]["verifier"]) == (1.0, mode), key


def test_auto_does_not_keep_what_a_box_that_was_too_small_told(tiny: str, tmp_path: Path) -> None:
    test = (
        "#!/bin/bash\n"
        "[ -f /etc/new ] && [ $(wc -c < /opt/big) = 30000000 ] && n=1 || n=0\n"
        "echo $n > /logs/verifier/reward.txt\n"
    )
    solve = "#!/bin/bash\nmkdir -p /opt; echo > /etc/new; head -c 30000000 /dev/zero > /opt/big\n"
    task = write_task(tmp_path, tiny, tests__test_sh=test, solution__solve_sh=solve)
    for disk_mb, reward, mode in ((8, 0.0, "pristine"), (64, 1.0, "shared"), (8, 0.0, "pristine")):
        with gem.make(f"harbor:{task}?verifier=auto&disk_mb={disk_mb}") as env:
            assert (solved(env), played(env)[1]["verifier"]) == (reward, mode), disk_mb


def test_a_link_is_not_read_as_a_reward(tmp_path: Path) -> None:
    test = "#!/bin/bash\nln -s /app/one /logs/verifier/reward.txt\n"
    folder = write_task(tmp_path, "host", tests__test_sh=test)
    with gem.make(f"harbor:{folder}") as env:
        reward, info = played(env, "echo 1 > one", LINK_TO_HOST)
        assert (reward, info["graded"]) == (0.0, "the tests wrote no reward")


@pytest.mark.nightly
def test_all_of_it_holds_for_a_user_without_rights(archive: Path) -> None:
    python = shutil.which("python3", path="/usr/bin")
    if os.geteuid() != 0 or python is None or shutil.which("setpriv") is None:
        pytest.skip("needs root, setpriv, and /usr/bin/python3, which other users may run")
    code = "import sys; raise SystemExit(sys.version_info < (3, 11))"
    if subprocess.run([python, "-c", code], check=False).returncode:
        pytest.skip("/usr/bin/python3 is older than 3.11")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for package in ("gem-core", "gem-sandbox", "gem-box"):
            source = ROOT / "packages" / package / "src"
            shutil.copytree(source, folder / "src", dirs_exist_ok=True)
        entry = folder / "src" / "gem_box-0.dist-info"
        entry.mkdir()
        (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: gem-box\nVersion: 0\n")
        (entry / "entry_points.txt").write_text(
            "[gem.clients]\nharbor = gem_box.making:make_harbor\n"
        )
        shutil.copy(ROOT / "tests" / "shared" / "boxes_attacks.py", folder)
        shutil.copy(archive, folder / "tiny.tar")
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        own = folder / "own"
        own.mkdir()
        os.chown(own, 1234, 1234)
        env = {
            "PYTHONPATH": str(folder / "src"),
            "GEM_BOX_CACHE": str(own / "cache"),
            "HOME": str(own),
        }
        user = ["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups"]
        done = subprocess.run(
            [*user, python, str(folder / "boxes_attacks.py"), str(own), str(folder / "tiny.tar")],
            env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert len(found) >= 32
        assert {name: each for name, each in found.items() if each != [1.0, 0.0]} == {}


@pytest.mark.parametrize(
    ("test", "reward", "graded"),
    [
        ("echo 0.25 > $V/reward.txt", 0.25, ""),
        ("echo '{\"reward\": 0.5, \"s\": 3}' > $V/reward.json; echo 1 > $V/reward.txt", 0.5, ""),
        ("echo '{\"quality\": 0.75}' > $V/reward.json", 0.75, ""),
        ("echo 2 > $V/reward.json; exit 7", 2.0, ""),
        ("true", 0.0, "wrote no reward"),
        ("echo '{}' > $V/reward.json", 0.0, "wrote no reward"),
        (": > $V/reward.txt", 0.0, "wrote no reward"),
        ("echo nan > $V/reward.txt", 0.0, "no finite number"),
        ("printf 1%0400d 0 > $V/reward.json", 0.0, "no finite number"),
        ("echo '[1]' > $V/reward.json", 0.0, "no finite number"),
        ("echo true > $V/reward.json", 0.0, "no finite number"),
        ("echo one > $V/reward.txt", 0.0, "is no number"),
        ("head -c 100000 /dev/zero | tr '\\0' 1 > $V/reward.txt", 0.0, "longer than"),
        ("mkfifo $V/reward.txt", 0.0, "wrote no reward"),
        ("sleep 1000", 0.0, "limit of time"),
        ("kill -9 $$", 0.0, "wrote no reward"),
    ],
)  # fmt: skip
def test_what_the_tests_write_is_the_reward_and_nothing_is_0(
    tmp_path: Path, test: str, reward: float, graded: str
) -> None:
    toml = "[verifier]\ntimeout_sec = 0.5\n[environment]\nnetwork_mode = 'no-network'\n"
    script = f"#!/bin/bash\nV=/logs/verifier\n{test}\n"
    folder = write_task(tmp_path, "host", tests__test_sh=script, task_toml=toml)
    with gem.make(f"harbor:{folder}") as env:
        got, info = played(env)
    assert got == reward
    assert graded in str(info["graded"])
    assert bool(graded) == bool(info["graded"])


def test_reward_key_chooses_a_number(tmp_path: Path) -> None:
    script = '#!/bin/bash\necho \'{"a": 0.25, "b": 1}\' > /logs/verifier/reward.json'
    folder = write_task(tmp_path, "host", tests__test_sh=script)
    for key, reward in {"a": 0.25, "b": 1.0}.items():
        with gem.make(f"harbor:{folder}", reward_key=key) as env:
            assert played(env)[0] == reward
    for wrong in ("c", None):
        with (
            gem.make(f"harbor:{folder}", reward_key=wrong) as env,
            pytest.raises(ConfigurationError, match="reward_key: .* 'a', 'b' and none"),
        ):
            played(env)


def test_a_box_that_is_gone_is_a_failure_of_the_sandbox(tmp_path: Path) -> None:
    with gem.make(f"harbor:{write_task(tmp_path, 'host')}") as env:
        assert isinstance(env, HarborEnv)
        for action in (call("echo"), FINISH):
            env.reset(seed=0)
            assert env._box is not None
            os.kill(env._box.link.pid, signal.SIGKILL)
            if action == FINISH:
                assert env._box._link is not None
                env._box.link.keeper.kill()
            with pytest.raises(UnreachableError) as caught:
                env.step(action)
                env.step(action)
            assert cause_of(caught.value) == "sandbox"
        assert solved(env) == 1.0


def test_observations_have_the_task_output_and_codes(tmp_path: Path) -> None:
    folder = write_task(tmp_path, "host")
    with gem.make(f"harbor:{folder}?max_turns=5&output_chars=40") as env:
        observation, info = env.reset(seed=3)
        assert "Write 84" in observation
        assert "<tool_call>" in observation
        assert info["task"] == folder.name
        assert env.step(call("cat start.txt"))[0] == "80\n[exit code 0]"
        observation, *_ = env.step(call("seq 1000; exit 3"))
        assert observation.startswith("1\n2\n")
        assert "characters left out" in observation
        assert "[exit code 3; the shell has ended" in observation
        observation, reward, *_, info = env.step("no call")
        assert info["format_error"]
        assert reward == 0
        assert "There is no call" in observation
        observation, *_, info = env.step('<tool_call>{"name": "python"}</tool_call>')
        assert "no tool 'python'" in observation
        assert "1 reply is left" in observation
        observation, reward, terminated, truncated, info = env.step(call("echo 84 > answer.txt"))
        assert (observation, reward, terminated, truncated) == ("", 1.0, False, True)
        assert info["success"]


def test_seeds_choose_tasks_and_eval_takes_them_in_order() -> None:
    with gem.make("harbor:sample?eval=true") as env:
        tasks = [path.name for path in sorted(sample_folder().iterdir())]
        assert [env.reset(seed=seed)[1]["task"] for seed in range(3)] == tasks[:3]
        assert env.reset()[1]["task"] == tasks[3]
    with gem.make("harbor:sample") as env:
        first = [env.reset(seed=5)[1]["task"], *(env.reset()[1]["task"] for _ in range(3))]
        assert len(set(first)) == 4
        assert first == [env.reset(seed=5)[1]["task"], *(env.reset()[1]["task"] for _ in range(3))]


def test_a_snapshot_plays_the_actions_again(tmp_path: Path) -> None:
    with gem.make(f"harbor:{write_task(tmp_path, 'host')}") as env:
        env.reset(seed=0)
        env.step(call("cd /srv; echo 84 > here"))
        with pickle.loads(pickle.dumps(env)) as copy:
            assert "84" in copy.step(call("pwd; cat here"))[0]
        with env.spawn(same_state=True) as child, env.spawn(seed=1) as other:
            assert "84" in child.step(call("cat here"))[0]
            child.step(call("cp here /app/answer.txt"))
            assert child.step(FINISH)[1] == 1.0
            other.reset()
        assert env.step(FINISH)[1] == 0.0


def test_a_closed_environment_leaves_no_process(tmp_path: Path) -> None:
    env = gem.make(f"harbor:{write_task(tmp_path, 'host')}")
    before = set(descendants(os.getpid()))
    env.reset(seed=0)
    env.step(call("sleep 1000 &"))
    assert set(descendants(os.getpid())) - before
    env.close()
    assert not set(descendants(os.getpid())) - before


def test_wrong_parameters_and_folders_are_named(tmp_path: Path) -> None:
    write_task(tmp_path / "task", "missing:1")
    for address, kind, words in (
        (f"{tmp_path}?max_turns=0", ConfigurationError, "max_turns"),
        (f"{tmp_path}?turns=3", UnknownParameterError, "turns"),
        (f"{tmp_path}?seed=1&seed=2", ConfigurationError, "twice"),
        (f"{tmp_path}?verifier=none", ConfigurationError, "verifier"),
        (f"{tmp_path}/none", ConfigurationError, "no task folder"),
    ):
        with pytest.raises(kind, match=words):
            gem.make(f"harbor:{address}")
    with (
        gem.make(f"harbor:{tmp_path}") as env,
        pytest.raises(ConfigurationError, match="missing:1"),
    ):
        env.reset(seed=0)


def test_a_command_of_a_dockerfile_that_fails_is_told(tmp_path: Path) -> None:
    text = "FROM host\nRUN echo told && false\n"
    folder = write_task(tmp_path, "host", environment__Dockerfile=text)
    with gem.make(f"harbor:{folder}") as env:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="exit code 1: told"):
                env.reset(seed=0)


def test_the_command_says_what_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert harbor(["sample", str(tmp_path / "tasks")]) == 0
    for path in sorted((tmp_path / "tasks").iterdir())[3:]:
        shutil.rmtree(path)
    assert harbor(["check", str(tmp_path / "tasks"), "--image", "host", "--play"]) == 0
    assert "3 of 3 tasks run here" in capsys.readouterr().out
    bad = write_task(tmp_path / "tasks" / "bad", "host", tests__test_sh="apt-get install -y x")
    always = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt"
    write_task(tmp_path / "tasks" / "easy", "host", tests__test_sh=always)
    assert harbor(["check", str(tmp_path / "tasks"), "--image", "host", "--play"]) == 1
    said = capsys.readouterr().out
    assert "3 of 5 tasks run here" in said
    assert f"{bad.name:32} tests/test.sh, line 1: seems to fetch" in said
    assert "doing nothing earns 1" in said


@pytest.mark.nightly
def test_the_checker_finds_nothing(tmp_path: Path) -> None:
    for number in (84, 85):
        texts = {
            "instruction_md": f"Write {number} to /app/answer.txt.\n",
            "solution__solve_sh": f"#!/bin/bash\necho {number} > answer.txt\n",
            "tests__test_sh": f'#!/bin/bash\n[ "$(cat /app/answer.txt)" = {number} ]\n'
            "echo $((1 - $?)) > /logs/verifier/reward.txt\n",
        }
        write_task(tmp_path / str(number), "host", **texts)
    report = check_env(f"harbor:{tmp_path}")
    assert report.passed, str(report)
