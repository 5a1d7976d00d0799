"""Task folders: what is read, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from boxes_attacks import write_task
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gem
from gem.errors import ConfigurationError
from gem_box.cli import main as harbor
from gem_box.dockerfile import IMAGES_PATH, Dockerfile, Step
from gem_box.env import HarborEnv, call
from gem_box.folders import found, read
from gem_box.images import used


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
        ("multi_step_reward_strategy = 'best'", "multi_step_reward_strategy = 'best'"),
        ("[colours]\nred = 1", "colours is not known here"),
        ("x = [", "task.toml: cannot be read as TOML"),
        ("environment = 'x'", "environment is no table"),
        ("[environment]\nmemory_mb = '2G'", "memory_mb must be a whole number"),
        ("[environment]\nmemory = 'two'", "environment.memory must be a text such as 2G"),
        ("[environment]\nmemory = '2G'\nmemory_mb = 5", "memory and memory_mb differ"),
        ("[environment]\ndocker_image = 1", "docker_image must be a text"),
        ("[environment.env]\n'A=B' = 'x'", "no variable can have"),
        ("[verifier.env]\nKEY = '${GEM_NO_SUCH}'", "verifier.env.KEY needs the variable GEM_NO"),
    ],
)
def test_what_a_box_cannot_do_is_refused_by_name(tmp_path: Path, toml: str, problem: str) -> None:
    folder = write_task(tmp_path, "host", task_toml=toml)
    assert any(problem in str(each) for each in read(folder).problems)
    with pytest.raises(ConfigurationError, match="task.toml"):
        gem.make(f"harbor:{folder}")


def test_what_harbor_has_and_a_box_can_do_is_taken(tmp_path: Path) -> None:
    toml = """
schema_version = "1.4"
artifacts = []
multi_step_reward_strategy = "final"
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
os = "Linux"
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
    assert (task.tests_s, task.is_offline, used(task)) == (30.0, True, ("host", True))
    with gem.make(f"harbor:{folder}?cpus=2") as env:
        observation, _ = env.reset(seed=0)
        assert "no network" not in observation
        assert "/srv" in env.step(call("pwd"))[0]
        assert env.step(env.oracle_action())[1:4] == (0.0, False, False)
        assert env.step(env.oracle_action())[1:4] == (1.0, True, False)


def test_missing_files_are_named(tmp_path: Path) -> None:
    for name in ("tests/test.sh", "instruction.md", "environment/Dockerfile"):
        folder = write_task(tmp_path / name.replace("/", "-"), "host")
        (folder / name).unlink()
        assert any(name.split("/")[-1] in str(each) for each in read(folder).problems), name
    (folder / "environment" / "docker-compose.yaml").write_text("x")
    assert any("several containers" in str(each) for each in read(folder).problems)
    with pytest.raises(ConfigurationError, match="no task folder"):
        found(tmp_path / "missing")


def parsed(folder: Path, text: str) -> tuple[Dockerfile, list[str]]:
    dockerfile, always, building = Dockerfile.parse(text, folder)
    return dockerfile, [str(each) for each in (*always, *building)]


def test_a_dockerfile_is_read_as_docker_reads_it(tmp_path: Path) -> None:
    for name in ("a file", "b.txt", "v1"):
        (tmp_path / name).write_text("")
    text = """# comment
ARG TAG=bookworm-slim
FROM --platform=linux/amd64 debian:${TAG} AS base
ENV A=1 B="two words" \\
    C='$A'
ENV D=$A-${B} PATH="/x:$PATH" E=${NONE:-7}${A:+8}${A-9} F=\\$A
ENV OLD style  value
ARG V=1
WORKDIR /app
# in between
WORKDIR "$B"
COPY --chown=root:root ["a file", "*.txt", "./"]
COPY /v${V} v$V /there/
RUN echo one && \\
    # comment in a command
    echo two
SHELL ["/bin/bash", "-eo", "pipefail", "-c"]
RUN	echo three <<< x $((1<<3))
RUN [ -d /app ] || echo "<<EOF"
USER root
CMD ["bash"]
ENTRYPOINT []
"""
    text = text.replace("linux/amd64", "$TARGETPLATFORM")
    dockerfile, problems = parsed(tmp_path, text)
    assert problems == []
    assert dockerfile.image == "debian:bookworm-slim"
    bash = ("/bin/bash", "-eo", "pipefail", "-c")
    assert dockerfile.steps == (
        Step("env", ("A", "1"), 4),
        Step("env", ("B", "two words"), 4),
        Step("env", ("C", "$A"), 4),
        Step("env", ("D", "1-two words"), 6),
        Step("env", ("PATH", f"/x:{IMAGES_PATH}"), 6),
        Step("env", ("E", "781"), 6),
        Step("env", ("F", "$A"), 6),
        Step("env", ("OLD", "style  value"), 7),
        Step("arg", ("V", "1"), 8),
        Step("workdir", ("/app",), 9),
        Step("workdir", ("/app/two words",), 11),
        Step("copy", ("a file", "*.txt", "./"), 12),
        Step("copy", ("/v1", "v1", "/there/"), 13),
        Step("run", ("/bin/sh", "-c", "echo one &&     echo two"), 14),
        Step("run", (*bash, "echo three <<< x $((1<<3))"), 18),
        Step("run", (*bash, '[ -d /app ] || echo "<<EOF"'), 19),
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("FROM", "line 2: FROM names no image"),
        ("FROM other", "line 2: FROM other: several stages are not supported"),
        ("USER app", "USER app is not supported"),
        ("VOLUME /x", "VOLUME is not supported"),
        ("HEALTHCHECK CMD true", "HEALTHCHECK is not supported"),
        ('ENTRYPOINT ["/start"]', "ENTRYPOINT is not supported"),
        ("COPY --from=other /a /b", "COPY --from=other is not supported"),
        ("COPY --chown=app missing /b", "COPY --chown=app is not supported"),
        ("COPY ../secret /x", "outside of environment"),
        ("COPY missing /x", "no such file"),
        ("COPY a**b /x", "COPY a**b"),
        ("COPY x", "sources and a target are needed"),
        ("ADD https://example.org/x /x", "only plain files"),
        ("RUN --mount=type=cache,target=/x true", "RUN --mount is not supported"),
        ("RUN cat <<EOF > x\nCOPY missing /x\nEOF", "line 2: RUN has a here-document (<<EOF)"),
        ("RUN <<-'E'\nFROM x\n\tE", "RUN has a here-document"),
        ("RUN", "RUN has no command"),
        ('RUN ["true"]', "RUN [...] is not supported"),
        ('SHELL ["/bin/zsh", "-c"]', "SHELL"),
        ('SHELL ["/bin/bash", "-i", "-c"]', "SHELL"),
        ("ENV broken='", "a quote is not closed"),
        ("ENV X=$LD_LIBRARY_PATH", "$LD_LIBRARY_PATH: not set here"),
        ("ENV X=1 Y=$X", "$X: not set here"),
        ("WORKDIR ${A%x}", "variables cannot be read"),
        ("ENV X", "not NAME=VALUE"),
        ("# escape=`", "# escape"),
    ],
)
def test_what_a_dockerfile_cannot_have_is_refused_by_name(
    tmp_path: Path, line: str, problem: str
) -> None:
    text = f"{line}\nFROM x" if line.startswith("#") else f"FROM x\n{line}\n"
    (said,) = parsed(tmp_path, text)[1]
    assert problem in said


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no FROM"),
        ("FROM", "FROM names no image"),
        ("RUN true\nFROM x", "line 1: RUN comes before FROM"),
        ("FROM x y", "FROM x y: an image's name was expected"),
        ("FROM $TAG", "$TAG: not set here"),
        ("FROM --platform=windows/amd64 x", "--platform=windows/amd64 is not supported"),
    ],
)
def test_a_wrong_beginning_of_a_dockerfile_is_named(
    tmp_path: Path, text: str, problem: str
) -> None:
    (said,) = parsed(tmp_path, text)[1]
    assert problem in said


WORDS = ["FROM", "RUN", "COPY", "ENV", "ARG", "SHELL", "ADD", "WORKDIR", "x", "/", "..", "**", "*[",
         "a=b", "$", "${", "${x:-${y}}", "'", '"', "[", "]", '["a"]', "<<", "<<E", "\\", "\n", "\t",
         "--from=", "--", "#", "\0", "\u2028", "é", " ", "="]  # fmt: skip
TABLES = ["[environment]", "[verifier]", "[agent]", "[verifier.env]", "[environment.env]"]
KEYS = ["environment", "env", "docker_image", "memory_mb", "memory", "cpus", "timeout_sec", "os",
        "workdir", "steps", "user"]  # fmt: skip
VALUES = ['"x"', "'2G'", "1", "-1", "nan", "inf", "1979-05-27", "[]", "{}", "[[", "]]", "true",
          '"${A:-"', "'${A}'", '"\\u0000"', "."]  # fmt: skip


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    dockerfile=st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join),
    toml=st.one_of(
        st.lists(st.sampled_from([*TABLES, *KEYS, *VALUES, "=", "\n"]), max_size=10).map(" ".join),
        st.tuples(*map(st.sampled_from, (TABLES, KEYS, VALUES))).map(
            lambda each: f"{each[0]}\n{each[1]} = {each[2]}\n"
        ),
    ),
    begins=st.booleans(),
)  # fmt: skip
def test_whatever_a_folder_has_the_others_are_checked(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    dockerfile: str,
    toml: str,
    begins: bool,
) -> None:
    text = f"FROM host\n{dockerfile}" if begins else dockerfile
    write_task(tmp_path / "a", "host", environment__Dockerfile=text, task_toml=toml)
    write_task(tmp_path / "b", "host")
    harbor(["check", str(tmp_path)])
    said = capsys.readouterr().out
    assert "\nb " in said
    if "0 of 2" not in said and "1 of 2" not in said:
        # Nothing is wrong with it, so that it can begin.
        HarborEnv(str(tmp_path / "a")).close()


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
