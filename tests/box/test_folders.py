"""Task folders: what is read, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from boxes_attacks import write_task

import gem
from gem.errors import ConfigurationError
from gem_box.dockerfile import Dockerfile, Step
from gem_box.env import call
from gem_box.folders import found, read


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("[environment]\ngpus = 1", "environment.gpus = 1 is not supported"),
        ("[environment]\nos = 'windows'", "environment.os = 'windows'"),
        ("[environment]\nnetwork_mode = 'allowlist'", "environment.network_mode = 'allowlist'"),
        ("[environment]\nmcp_servers = [{name = 'x'}]", "environment.mcp_servers"),
        ("[environment.healthcheck]\ncommand = 'x'", "environment.healthcheck"),
        ("[environment]\ncolour = 1", "environment.colour is not known here"),
        ("[verifier]\nenvironment_mode = 'separate'", "verifier.environment_mode"),
        ("[verifier]\nuser = 'judge'", "verifier.user = 'judge'"),
        ("[verifier]\ntimeout_sec = -1", "verifier.timeout_sec must be a number above 0"),
        ("[agent]\nuser = 'agent'", "agent.user = 'agent'"),
        ("[[steps]]\nname = 'one'", "steps"),
        ("[colours]\nred = 1", "colours is not known here"),
        ("x = [", "cannot be read as TOML"),
    ],
)
def test_what_a_box_cannot_do_is_refused_by_name(tmp_path: Path, toml: str, problem: str) -> None:
    folder = write_task(tmp_path, "host", task_toml=toml)
    assert any(problem in each for each in read(folder).problems)
    with pytest.raises(ConfigurationError, match="task.toml"):
        gem.make(f"harbor:{folder}")


def test_what_harbor_has_and_a_box_can_do_is_taken(tmp_path: Path) -> None:
    toml = """
schema_version = "1.4"
artifacts = []
[task]
name = "org/x"
[metadata]
anything = {at = "all"}
[agent]
timeout_sec = 60
[verifier]
timeout_sec = 30
env = {LEVEL = "3"}
[environment]
cpus = 2
memory_mb = 512
env = {A = "b c"}
workdir = "/srv"
network_mode = "no-network"
[solution]
env = {S = "s"}
"""
    test = '#!/bin/bash\n[ "$LEVEL$A$PWD$(cat /srv/s)" = "3b c/srvs" ] && '
    test += "echo 1 > /logs/verifier/reward.txt"
    solve = '#!/bin/bash\necho "$S" > /srv/s\n'
    folder = write_task(
        tmp_path, "host", task_toml=toml, tests__test_sh=test, solution__solve_sh=solve
    )
    task = read(folder)
    assert task.problems == ()
    assert (task.tests_s, task.is_offline, task.image) == (30.0, True, "host")
    with gem.make(f"harbor:{folder}") as env:
        observation, _ = env.reset(seed=0)
        assert "no network" not in observation
        assert "/srv" in env.step(call("pwd"))[0]
        assert env.step(env.oracle_action())[1:4] == (0.0, False, False)
        assert env.step(env.oracle_action())[1:4] == (1.0, True, False)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("apt-get install -y git", "apt-get"),
        ("pip install pytest", "pip install"),
        ("cd /x && curl -LsSf https://example.org/uv | sh", "curl"),
        ("uvx pytest /tests", "uvx"),
        ("python3 -m pip install x", "python3 -m pip install"),
        ("curl http://localhost:8000/x", None),
        ("echo apt-get is no command here", None),
        ("# apt-get install x", None),
        ("cat curl.txt", None),
    ],
)
def test_a_test_that_needs_the_network_is_refused(
    tmp_path: Path, line: str, problem: str | None
) -> None:
    folder = write_task(tmp_path, "host", tests__test_sh=f"#!/bin/bash\n{line}\n")
    problems = read(folder).problems
    if problem is None:
        assert problems == ()
    else:
        assert problems == (f"tests/test.sh: it needs the network ({problem}, command 2)",)


def test_missing_files_are_named(tmp_path: Path) -> None:
    for name in ("tests/test.sh", "instruction.md", "environment/Dockerfile"):
        folder = write_task(tmp_path / name.replace("/", "-"), "host")
        (folder / name).unlink()
        assert any(name.split("/")[-1] in each for each in read(folder).problems), name
    (folder / "environment" / "docker-compose.yaml").write_text("x")
    assert any("several containers" in each for each in read(folder).problems)
    with pytest.raises(ConfigurationError, match="no task folder"):
        found(tmp_path / "missing")


def test_a_dockerfile_is_read_as_docker_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    (tmp_path / "b.txt").write_text("")
    text = """# comment
FROM debian:bookworm-slim
ENV A=1 B="two words" \\
    C=$A-${B}
ENV OLD style value
WORKDIR /app
# in between
WORKDIR sub
COPY ["a file", "*.txt", "./"]
RUN echo one && \\
    # comment in a command
    echo two
SHELL ["/bin/bash", "-c"]
RUN echo three
USER root
CMD ["bash"]
"""
    dockerfile, problems = Dockerfile.parse(text, tmp_path)
    assert problems == []
    assert dockerfile.image == "debian:bookworm-slim"
    assert dockerfile.steps == (
        Step("env", ("A", "1")),
        Step("env", ("B", "two words")),
        Step("env", ("C", "1-two words")),
        Step("env", ("OLD", "style value")),
        Step("workdir", ("/app",)),
        Step("workdir", ("/app/sub",)),
        Step("copy", ("a file", "*.txt", "./")),
        Step("run", ("/bin/sh", "echo one &&      echo two")),
        Step("run", ("/bin/bash", "echo three")),
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("FROM other", "several FROM"),
        ("USER app", "USER app is not supported"),
        ("VOLUME /x", "VOLUME is not supported"),
        ("HEALTHCHECK CMD true", "HEALTHCHECK is not supported"),
        ("ARG X=1", "ARG is not supported"),
        ("COPY --from=other /a /b", "COPY --from=other is not supported"),
        ("COPY ../secret /x", "outside of environment"),
        ("COPY missing /x", "no such file"),
        ("ADD https://example.org/x /x", "only plain files"),
        ("RUN --mount=type=cache,target=/x true", "RUN --mount"),
        ("RUN <<EOF", "here-document"),
        ('RUN ["true"]', "RUN [...] is not supported"),
        ('SHELL ["/bin/zsh", "-c"]', "SHELL"),
        ("ENV broken='", "ENV"),
    ],
)
def test_what_a_dockerfile_cannot_have_is_refused_by_name(
    tmp_path: Path, line: str, problem: str
) -> None:
    _, problems = Dockerfile.parse(f"FROM x\n{line}\n", tmp_path)
    assert any(problem in each for each in problems), problems
    assert Dockerfile.parse("RUN true", tmp_path)[1][0] == "RUN comes before FROM"
    assert Dockerfile.parse("FROM x AS y", tmp_path)[1] == [
        "FROM x AS y: only an image's name is supported"
    ]


def test_an_image_has_what_its_dockerfile_makes(tmp_path: Path) -> None:
    context = tmp_path / "environment"
    (context / "data" / "deep").mkdir(parents=True)
    (context / "data" / "deep" / "x.txt").write_text("deep")
    (context / "run.sh").write_text("#!/bin/sh\necho ran $A")
    (context / "run.sh").chmod(0o755)
    text = (
        "FROM host\nENV A=first\nWORKDIR /app\nCOPY data copied\nCOPY run.sh /usr-local/\n"
        "COPY run.sh /opt\nCOPY data/deep/x.txt ./renamed\nENV A=second\n"
        "RUN /usr-local/run.sh > made; mkdir gone && rmdir gone; echo $PWD >> made\n"
        "RUN rm /etc/hosts; rm -r /mnt && mkdir /mnt && chmod 700 /mnt\n"
    )
    folder = write_task(tmp_path, "host", environment__Dockerfile=text)
    command = (
        "cat copied/deep/x.txt renamed made; /opt/run.sh; ls -A / | grep -c mnt; ls /etc/hosts"
    )
    for _ in range(2):
        with gem.make(f"harbor:{folder}") as env:
            env.reset(seed=0)
            said = env.step(call(command))[0]
            assert said.startswith("deepdeepran second\n/app\nran second\n1\nls: cannot access"), (
                said
            )
    (context / "data" / "deep" / "x.txt").write_text("changed")
    with gem.make(f"harbor:{folder}") as env:
        env.reset(seed=0)
        assert env.step(call("cat renamed"))[0].startswith("changed")
