"""What `gem harbor check` says, and that it is what a box then does."""

from __future__ import annotations

from pathlib import Path

import pytest
from boxes_attacks import played, solved, write_task

import gem
from gem.blame import cause_of
from gem.errors import ConfigurationError, UnreachableError
from gem_box.cli import main as harbor
from gem_box.env import HarborEnv, call
from gem_box.fetching import in_python, in_shell
from gem_box.folders import read
from gem_box.images import imported


@pytest.mark.parametrize(
    "line",
    [
        "apt-get install -y git",
        "DEBIAN_FRONTEND=noninteractive apt-get -y install x",
        "sudo -E apt-get update",
        "sudo -n apt-get update",
        "pip install pytest",
        "pip --no-cache-dir install x",
        "python3.11 -m pip install x",
        "/opt/venv/bin/pip install x",
        "pip install ./x.whl y",
        "cd /x && curl -LsSf https://example.org/uv | sh",
        "timeout 60 curl https://example.org",
        "timeout -k 5 60 curl $URL",
        "if ! curl -f https://example.org; then",
        "sh -c 'curl https://example.org'",
        'bash -lc "cd /x && wget https://example.org"',
        'x="$(curl -s https://example.org)"',
        "curl http://localhost/x https://example.org",
        "uvx pytest /tests",
        "uv venv -p 3.12",
        "git clone -o x --depth 1 https://example.org/x.git",
        "git clone git@example.org:x",
        "git pull",
        "git -C /x fetch origin",
        "Rscript -e 'install.packages(\"x\")'",
        "opam install x",
        "poetry install",
        "mvn -q package",
        "playwright install chromium",
        "python -m playwright install",
        "hf download x/y",
        "cargo build --release",
        "xargs -n 1 pip install < list",
        "ssh root@example.org ls",
    ],
)
def test_a_command_that_seems_to_fetch_is_found(line: str) -> None:
    assert [number for number, _ in in_shell(f"#!/bin/bash\n{line}\n")] == [2]


@pytest.mark.parametrize(
    "line",
    [
        "apt-get clean",
        "apt list --installed",
        "curl --version",
        "pip install --no-index x",
        "pip install /wheels/x-1-py3-none-any.whl",
        "pip --version",
        "cargo build --offline",
        "uvx --offline pytest",
        "mvn -o package",
        "curl http://localhost:8000/x",
        "curl -s 127.0.0.1:80/a?b=c",
        "wget -qO- http://0.0.0.0:5000",
        "curl --unix-socket /x.sock http://x/y",
        "ssh -p 2222 git@localhost ls",
        "git clone /srv/repo x",
        "git clone file:///srv/repo x",
        "git clone git@localhost:/srv/repo x",
        "git pull /srv/repo main",
        "git commit -m 'curl https://example.org'",
        "echo apt-get install is no command here",
        "command -v curl > /dev/null",
        "# apt-get install x",
        "cat curl.txt  # curl https://example.org",
    ],
)
def test_a_command_that_stays_on_the_machine_is_none(line: str) -> None:
    assert list(in_shell(line)) == []


def test_python_is_read_for_calls_that_seem_to_fetch() -> None:
    text = """
subprocess.run(["pip", "install", name])
subprocess.check_output(f"curl {url}", shell=True)
requests.get("https://example.org/x")
requests.get("http://localhost:80/x")
requests.get(url)
print("curl https://example.org")
load_dataset("x")
"""
    assert [line for line, _ in in_python(text)] == [2, 3, 4, 8]


def test_scripts_beside_the_tests_and_those_that_a_run_starts_are_read(tmp_path: Path) -> None:
    script = "#!/bin/bash\npip install x\n"
    folder = write_task(
        tmp_path,
        "host",
        environment__Dockerfile="FROM host\nCOPY *.sh /x/\nRUN \\\n  bash /x/setup.sh\n",
        environment__setup_sh=script,
        environment__other_sh=script,
        tests__more__check_py="import os\nos.system('pip install x')\n",
    )
    task = read(folder)
    assert [(each.file, each.line) for each in task.problems] == [("tests/more/check.py", 2)]
    assert [(each.file, each.line) for each in task.build_problems] == [("environment/setup.sh", 2)]


def test_each_file_has_one_line_and_the_summary_counts_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        write_task(
            tmp_path / name,
            "missing:1",
            environment__Dockerfile=f"FROM missing:1\nRUN true\n\nRUN apt-get update\n"
            f"COPY {name} /x\nRUN apt-get install a && apt-get install b\n",
            tests__test_sh="#!/bin/bash\ncurl https://example.org\n",
            task_toml="[environment]\nallow_internet = true\nstorage_mb = 4096\n",
        )
    assert harbor(["check", str(tmp_path)]) == 1
    first, _, rest = capsys.readouterr().out.partition("two ")
    seems = "seems to fetch, and boxes have no network"
    assert [line.strip() for line in first.splitlines()] == [
        f"one {'':28} tests/test.sh, line 2: {seems}: curl",
        "environment/Dockerfile, line 5: COPY one: there is no such file",
        f"environment/Dockerfile, line 4: {seems}: apt-get update (and 2 more)",
        "task.toml: environment.storage_mb = 4096 is above the limit disk_mb=1024",
        "image: missing:1 is not here (gem harbor import brings it)",
        "hint: it may need the network to be solved (allow_internet = true)",
    ]
    assert [line.strip() for line in rest.partition("\n\n")[2].splitlines()] == [
        "0 of 2 tasks run here",
        "2 tasks allow the network and may need it to be solved",
        f"2  tests/test.sh: {seems}",
        "2  environment/Dockerfile: COPY of a missing file",
        f"2  environment/Dockerfile: {seems}",
        "2  task.toml: environment.storage_mb is above the limit disk_mb",
        "2  image: it is not here",
    ]


def test_the_hosts_files_instead_of_an_image_are_told_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path / "a", "host")
    write_task(tmp_path / "b", "debian:13")
    toml = '[environment]\ndocker_image = "org/c:1"\n'
    write_task(tmp_path / "c", "debian:13", task_toml=toml)
    assert harbor(["check", str(tmp_path), "--image", "host"]) == 0
    said = capsys.readouterr().out
    assert f"{'a':32} runs\n" in said
    assert f"{'b':32} runs on the host's files instead of debian:13\n" in said
    assert f"{'c':32} runs on the host's files instead of org/c:1\n" in said
    assert "3 of 3 tasks run here\n2 of them run on the host's files instead" in said


def test_a_ready_image_is_used_with_folder_and_variables_of_the_dockerfile(
    tmp_path: Path, archive: Path
) -> None:
    toml = '[environment]\ndocker_image = "ready:1"\n'
    text = "FROM missing:1\nENV A=b\nWORKDIR /app\nRUN apt-get update\nCOPY missing .\n"
    folder = write_task(tmp_path, "", task_toml=toml, environment__Dockerfile=text)
    with pytest.raises(ConfigurationError, match="apt-get"):
        gem.make(f"harbor:{folder}")
    imported("ready:1", archive)
    with gem.make(f"harbor:{folder}") as env:
        env.reset(seed=0)
        assert env.step(call('echo "$PWD $A"; ls -A'))[0].startswith("/app b\n[exit")
    folder = write_task(tmp_path, "", environment__Dockerfile='FROM x\nENTRYPOINT ["/s"]\n')
    with pytest.raises(ConfigurationError, match="line 2: ENTRYPOINT is not supported"):
        gem.make(f"harbor:{folder}")


def test_limits_of_a_task_hold_and_those_above_the_users_are_refused(tmp_path: Path) -> None:
    toml = "[environment]\nmemory = '64M'\nstorage_mb = 20\n"
    folder = write_task(tmp_path, "host", task_toml=toml)
    with gem.make(f"harbor:{folder}") as env:
        env.reset(seed=0)
        said = env.step(call("head -c 30000000 /dev/zero > /app/x; stat -c %s /app/x"))[0]
        assert "No space left" in said
        grows = "x=1234567890; while :; do x=$x$x; done"
        assert "cannot allocate" in env.step(call(grows))[0]
    for toml, options in (
        ("memory_mb = 4096", {"memory_mb": 4096}),
        ("storage_mb = 2000", {"disk_mb": 2000}),
        ("cpus = 1000", {"cpus": 1000}),
    ):
        write_task(folder, "host", task_toml=f"[environment]\n{toml}\n")
        (name,) = options
        with pytest.raises(ConfigurationError, match=f"{toml} is above the limit {name}="):
            gem.make(f"harbor:{folder}")
        with gem.make(f"harbor:{folder}", **options) as env:
            assert isinstance(env, HarborEnv)
            assert solved(env) == 1.0


def test_variables_of_a_task_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = "[verifier.env]\nA = '${GEM_A}'\nB = '${GEM_B:-3}'\nC = 'x${GEM_A}'\n"
    test = "#!/bin/bash\n[ \"$A$B$C\" = '23x${GEM_A}' ] && echo 1 > /logs/verifier/reward.txt\n"
    folder = write_task(tmp_path, "host", task_toml=toml, tests__test_sh=test)
    with pytest.raises(ConfigurationError, match="verifier.env.A needs the variable GEM_A"):
        gem.make(f"harbor:{folder}")
    monkeypatch.setenv("GEM_A", "2")
    with gem.make(f"harbor:{folder}") as env:
        assert played(env)[0] == 1.0


def test_what_dockerignore_leaves_out_is_not_copied(tmp_path: Path) -> None:
    names = ("a.txt", "a.log", "deep/b.log", "deep/kept.log", "gone/c.txt", "gone/back.txt")
    files = {f"environment/{name}": name for name in names}
    ignore = "# all logs\n**/*.log\n!deep/kept.log\n/gone/\n!gone/back.txt\nDockerfile\n"
    files["environment/.dockerignore"] = ignore
    folder = write_task(tmp_path, "host", environment__Dockerfile="FROM host\nCOPY . /app\n")
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with gem.make(f"harbor:{folder}") as env:
        env.reset(seed=0)
        said = env.step(call("cd /app && find . -type f | sort"))[0].splitlines()
    assert said[:-1] == ["./.dockerignore", "./a.txt", "./deep/kept.log", "./gone/back.txt"]
    write_task(tmp_path, "host", environment__Dockerfile="FROM host\nCOPY a.log /app/\n")
    assert "no such file" in str(read(folder).build_problems[0])


@pytest.mark.parametrize(
    "fetch",
    [
        "exec 3<>/dev/tcp/192.0.2.7/80 && echo 1 > /logs/verifier/reward.txt",
        "(exec 3<>/dev/tcp/example.org/80) && R=1; echo ${R:-0} > /logs/verifier/reward.txt",
    ],
)
def test_tests_that_cannot_reach_the_network_are_void_and_not_0(
    tiny: str, tmp_path: Path, fetch: str
) -> None:
    for image in ("host", tiny):
        folder = write_task(tmp_path, image, tests__test_sh=f"#!/bin/bash\n{fetch}\n")
        assert read(folder).problems == ()
        with gem.make(f"harbor:{folder}") as env:
            with pytest.raises(UnreachableError, match="try to reach a network") as caught:
                played(env)
            assert cause_of(caught.value) == "grader"


def test_a_policy_cannot_escape_a_reward_by_reaching_for_the_network(tmp_path: Path) -> None:
    test = "#!/bin/bash\n[ -e /app/run ] && . /app/run\necho 0 > /logs/verifier/reward.txt\n"
    folder = write_task(tmp_path, "host", tests__test_sh=test)
    with gem.make(f"harbor:{folder}") as env:
        reward, info = played(env, "echo 'exec 3<>/dev/tcp/192.0.2.7/80; exit' > /app/run")
    assert (reward, info["graded"]) == (0.0, "the tests wrote no reward")


def test_tests_may_use_the_boxs_own_network(tmp_path: Path) -> None:
    test = "#!/bin/bash\n(exec 3<>/dev/tcp/localhost/9)\necho 0 > /logs/verifier/reward.txt\n"
    folder = write_task(tmp_path, "host", tests__test_sh=test)
    with gem.make(f"harbor:{folder}") as env:
        assert played(env)[0] == 0.0
