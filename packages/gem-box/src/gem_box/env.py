"""`HarborEnv`: a policy works in a box with a shell; the task's tests give the reward."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gem.blame import boundary
from gem.core import Env, Info, Observation, Step, known_options
from gem.errors import ConfigurationError, ResetNeededError, UnreachableError
from gem.parameters import choice, flag, integer, optional, positive, text
from gem.sources import permuted
from gem.tools.base import JsonCall, clip, json_call, printable
from gem_box.box import SYSTEM, Ran
from gem_box.choosing import PRISTINE, SHARED, chosen
from gem_box.folders import Folder, found, read
from gem_box.grading import LOGS, Graded, grade, solution
from gem_box.images import built, problems
from gem_box.limits import DISK_MB, MEMORY_MB, PROCESSES, limits
from gem_box.overlay import OverlayBox
from gem_box.problems import told
from gem_box.provided import ProvidedBox
from gem_box.shell import LONGEST_COMMAND
from gem_sandbox import Limits

EnvT = TypeVar("EnvT", bound="HarborEnv")

_HOW = """You work in a shell on a Linux system, as root. Write one call in a reply:
<tool_call>{"name": "bash", "arguments": {"command": "..."}}</tool_call>
runs a command; the shell keeps its folder and its variables.
<tool_call>{"name": "finish", "arguments": {}}</tool_call>
says that the task is done."""
_OFFLINE = "The system has no network."
_WRONG = 'Write one call: <tool_call>{"name": "bash", "arguments": {"command": "..."}}</tool_call>'
_FINISH = '<tool_call>{"name": "finish", "arguments": {}}</tool_call>'
_LOOKS = ("ls -a", "pwd", "cat /etc/os-release", "ls -a / /root", "env", "head -n 5 *")
_LARGEST = 10**9
# A script that asks where it lies.
_PLACE = re.compile(r"/solution|\$\{?0|BASH_SOURCE")


class HarborEnv(Env):
    """Terminal tasks in Harbor's folders.

    A seed chooses the task; the reward comes at the end, from the task's tests, which are put into
    the box only then, when all processes of the policy have ended. The end is a call of `finish`
    (terminated) or the last turn (truncated). Tests that write no reward although the box lives
    give 0, with the reason in `info["graded"]`: the policy may have broken them. A box that is gone
    is a failure with the cause `sandbox`, never a reward.

    The oracle runs the task's solution. Commands may tell the time, so that the same actions need
    not give the same observations; `snapshot` has the actions, and `restore` plays them again.

    Attributes:
        tasks: The tasks.
        task: The current task; set by `reset`.
    """

    replayable = False

    def __init__(
        self,
        folder: str,
        *,
        image: str | None = None,
        eval: bool = False,
        max_turns: int = 20,
        output_chars: int = 4000,
        command_s: float = 30.0,
        verifier: str = "pristine",
        reward_key: str | None = None,
        memory_mb: int = MEMORY_MB,
        disk_mb: int = DISK_MB,
        processes: int = PROCESSES,
        cpus: int | None = None,
        seed: int | None = None,
    ) -> None:
        """Read the tasks; no box is started.

        Args:
            folder: A task folder, or one that has task folders.
            image: Image of all tasks instead of those that they name; `host` is this machine's own
                system, see `images`.
            eval: Tasks in order: the task is `(seed + resets since) % size`.
            max_turns: Replies after which the episode is truncated.
            output_chars: Most characters of a command's output that are shown: head and tail.
            command_s: CPU time of a command in seconds; see `Box.run`.
            verifier: `pristine` puts the folders of the system back to what the image has before
                the tests run; `shared` does not, for tasks in which the policy changes the system;
                `auto` is `shared` where the task's solution earns 1 only there, which is found out
                once for each task.
            reward_key: The number of reward.json that is the reward; None: `reward`, or the only
                one.
            memory_mb: Memory of all processes of a box, and the most that a task may ask for.
            disk_mb: What a box may write, in memory, and the most that a task may ask for.
            processes: Most processes and threads of a box.
            cpus: Most CPUs that a task may ask for; None: those of this machine.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed, there is no task, or a task cannot run in a
                box; the message names each reason.
        """
        super().__init__(seed=seed)
        self.image = optional(text, "image", image)
        self.eval = flag("eval", eval)
        self.max_turns = integer("max_turns", max_turns, 1, _LARGEST)
        self.output_chars = integer("output_chars", output_chars, 1, _LARGEST)
        self.command_s = positive("command_s", command_s)
        self.verifier = choice("verifier", verifier, (PRISTINE, SHARED, "auto"))
        self.reward_key = optional(text, "reward_key", reward_key)
        most = {"memory_mb": memory_mb, "disk_mb": disk_mb, "processes": processes}
        self.limits = Limits(cpu_s=self.command_s, **most)
        self.cpus = None if cpus is None else integer("cpus", cpus, 1, _LARGEST)
        self.tasks = [self._runnable(each) for each in found(Path(text("folder", folder)))]
        self._box: OverlayBox | ProvidedBox | None = None
        self._reach_out: dict[int, bool] = {}
        self._modes: dict[int, str] = {}
        self._forget()

    def _forget(self) -> None:
        self.close()
        self._actions: list[str] = []
        self._over = True
        self._addressed = 0

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Begin a task in a new box.

        Args:
            seed: See `Env.reset`; chooses the task. Resets without one walk all tasks.
            **options: `idx` begins that very task instead and does not advance the walk.

        Raises:
            ConfigurationError: There is no task `idx`, or the task's image is missing or cannot be
                built.
            UnreachableError: No box can be started.
        """
        idx = known_options(self, options, "idx").get("idx")
        if seed is None and self._base_seed is None and self.eval:
            seed = 0
        if idx is not None:
            idx = integer("idx", idx, 0, len(self.tasks) - 1)
        super().reset(seed=seed)
        if self._episode == 0:
            self._addressed = 0
        self._addressed += idx is not None
        index = self._walk() if idx is None else idx
        self._begin(index)
        return self._observe(), {"index": index, "task": self.task.name}

    def _begin(self, index: int) -> None:
        self._leave()
        self.index, self.task = index, self.tasks[index]
        self._actions, self._over = [], True
        if index not in self._modes:
            with boundary("sandbox"):
                self._modes[index] = self._chosen()
        self._mode = self._modes[index]
        self._box = self._start_box()
        self._over = False

    def _start_box(self) -> OverlayBox | ProvidedBox:
        return self._new_box()

    def _new_box(self) -> OverlayBox:
        environment = self.task.table("environment")
        image = built(self.task, self.image)
        allowed, _ = limits(self.task, self.limits, self.cpus)
        box = image.box(allowed, self.task.env("environment"), environment.get("workdir"))
        with boundary("sandbox"):
            try:
                box.start()
                for name in (*LOGS, box.workdir):
                    box.put(None, name)
            except BaseException:
                box.close()
                raise
        return box

    def _chosen(self) -> str:
        if self.verifier != "auto":
            return self.verifier
        if solution(self.task) is None:
            return PRISTINE
        folder, image = str(self.task.path), self.image
        most = {name: getattr(self.limits, name) for name in ("memory_mb", "disk_mb", "processes")}
        most["cpus"] = self.cpus
        key = self.reward_key

        def earns(mode: str) -> float:
            return earned(folder, image, mode, reward_key=key, **most)

        return chosen(self.task, image, most, key, earns)

    def _runnable(self, path: Path) -> Folder:
        task = read(path)
        reasons = [*problems(task, self.image), *limits(task, self.limits, self.cpus)[1]]
        if reasons:
            raise ConfigurationError(
                f"task {task.name!r} cannot run in a box: {'; '.join(told(reasons))} "
                "(gem harbor check says it of all tasks)"
            )
        return task

    def _walk(self) -> int:
        base, episode = self.episode_key
        position = episode - self._addressed
        if self.eval:
            return (base + position) % len(self.tasks)
        epoch, place = divmod(position, len(self.tasks))
        return permuted(place, len(self.tasks), base, epoch)

    def _observe(self) -> str:
        parts = [self.task.instruction.strip(), _HOW]
        if self._says_offline():
            parts.append(_OFFLINE)
        return "\n\n".join([*parts, f"You have {self.max_turns} replies."])

    def _says_offline(self) -> bool:
        # A task that wants no network says so itself.
        return not self.task.is_offline

    def step(self, action: str) -> Step:
        """Run a command, or end the task; see `Env.step`.

        Raises:
            BusyMachineError: A command or the tests got too little CPU time.
            UnreachableError: The box is gone.
        """
        if self._over or self._box is None:
            raise ResetNeededError("the episode has not begun or is over; call reset()")
        self._actions.append(action)
        found = json_call(action)
        command, wrong = _command(found[0] if found else None)
        left = self.max_turns - len(self._actions)
        info: Info = {
            "success": False,
            "format_error": wrong is not None,
            "invalid_action": False,
            "task": self.task.name,
        }
        if command is None and wrong is None:
            return self._ended(info, False)
        if command is None:
            said = wrong or ""
        else:
            with boundary("sandbox"):
                ran = self._box.run(command, self._seconds(command))
            info["exit_code"] = ran.code
            said = self._told(ran)
        if not left:
            return self._ended(info, True)
        if left <= 3:
            said += f"\n{left} {'reply is' if left == 1 else 'replies are'} left."
        return said, 0.0, False, False, info

    def _seconds(self, command: str) -> float:
        """Return the limit of a command; the solution has what the task gives an agent."""
        if command != self._solution():
            return self.command_s
        agent = self.task.table("agent").get("timeout_sec", 0)
        return max(self.command_s, float(agent))

    def _told(self, ran: Ran) -> str:
        output = clip(
            printable(ran.output.decode("utf-8", "replace")).strip("\n"), self.output_chars
        )
        if ran.limit_hit:
            end = f"[ended: it hit the limit of {ran.limit_hit}; the shell is a new one]"
        elif ran.ended_shell:
            end = f"[exit code {ran.code}; the shell has ended, the next command has a new one]"
        else:
            end = f"[exit code {ran.code}]"
        return f"{output}\n{end}" if output else end

    def _ended(self, info: Info, truncated: bool) -> Step:
        assert self._box is not None
        self._over = True
        try:
            with boundary("sandbox"):
                graded = self._graded()
        finally:
            self._leave()
        info |= {"success": graded.reward >= 1.0, "rewards": graded.rewards}
        info |= {"graded": graded.reason, "tests": graded.output, "verifier": self._mode}
        return "", graded.reward, not truncated, truncated, info

    def _graded(self) -> Graded:
        pristine = SYSTEM if self._mode == PRISTINE else ()
        assert isinstance(self._box, OverlayBox)
        graded = grade(self.task, self._box, pristine, self.reward_key)
        if graded.reached_out and graded.reward <= 0:
            self._require_offline(pristine)
        return graded

    def _require_offline(self, pristine: Sequence[str]) -> None:
        """Raise if the task's tests need a network, which is no fault of the policy.

        They run once in a box in which no policy has worked: a policy could start a program that
        reaches out, and so escape a bad reward.
        """
        if self.index not in self._reach_out:
            with contextlib.closing(self._new_box()) as box:
                untouched = grade(self.task, box, pristine, self.reward_key)
            self._reach_out[self.index] = untouched.reached_out
        if self._reach_out[self.index]:
            with boundary("grader"):
                raise UnreachableError(
                    f"the tests of {self.task.name} earn nothing and try to reach a network, which "
                    "boxes do not have: they cannot grade here"
                )

    def render(self) -> str:
        """Return the task and the actions so far."""
        return "\n".join([self.task.name, self.task.instruction.strip(), *self._actions])

    def sample_random_action(self) -> str:
        """Return a call that looks around."""
        return call(self.action_rng.choice(_LOOKS))

    def oracle_action(self) -> str:
        """Return the task's solution as a command, then `finish`.

        Raises:
            NotImplementedError: The task has no solution.
        """
        command = self._solution()
        if command is None or self._box is None:
            raise NotImplementedError(f"task {self.task.name!r} has no solution/solve.sh")
        if call(command) in self._actions:
            return _FINISH
        if (folder := solution(self.task)) is not None and "/solution/" in command:
            # Episodes of others have no such folder.
            with boundary("sandbox"):
                self._box.put(folder, "/solution", fresh=True)
        return call(command)

    def _solution(self) -> str | None:
        folder = solution(self.task)
        if folder is None:
            return None
        script = (folder / "solve.sh").read_text("utf-8", "replace")
        variables = [f"{k}={shlex.quote(v)}" for k, v in self.task.env("solution").items()]
        alone = len(list(folder.iterdir())) == 1 and not _PLACE.search(script)
        # As a person would type it.
        lines = [line for line in script.split("\n") if line and not line.startswith("#")]
        if alone and len(lines) == 1 and not variables:
            return lines[0]
        env = ["env", *variables] if variables else []
        command = " ".join([*env, "bash", "-c", shlex.quote(script)])
        if alone and len(command.encode()) <= LONGEST_COMMAND:
            return command
        return " ".join([*env, "bash", "/solution/solve.sh"])

    def close(self) -> None:
        """End the box; safe to repeat."""
        self._leave()

    def _leave(self) -> None:
        box, self._box = getattr(self, "_box", None), None
        if box is not None:
            box.close()

    def snapshot(self) -> bytes:
        """Return the state; that of the box is the actions so far."""
        state = {k: v for k, v in self.__getstate__().items() if k not in self._apart}
        return pickle.dumps(state, protocol=5)

    def restore(self, state: bytes) -> None:
        """Continue from `snapshot`: the actions are played again, in a box of its own."""
        self.close()
        kept = {name: self.__dict__[name] for name in self._apart if name in self.__dict__}
        self.__dict__.clear()
        self.__setstate__(pickle.loads(state) | kept)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_box"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._box = None
        if not self._over:
            actions = self._actions
            self._begin(self.index)
            for action in actions:
                self.step(action)

    def spawn(self: EnvT, same_state: bool = False, seed: int | None = None) -> EnvT:
        """Return a new environment; with `same_state` the actions are played again in its box."""
        if same_state:
            return super().spawn(same_state, seed)
        over, self._over = self._over, True
        try:
            return super().spawn(same_state, seed)
        finally:
            self._over = over

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def call(command: str) -> str:
    """Return the call of the tool `bash` for a command."""
    value: Mapping[str, Any] = {"name": "bash", "arguments": {"command": command}}
    return f"<tool_call>{json.dumps(value)}</tool_call>"


def earned(
    folder: str, image: str | None, verifier: str, solves: bool = True, **limits: Any
) -> float:
    """Return what the solution of a task earns, or a policy that does nothing.

    Raises:
        NotImplementedError: There is no solution.
        UnreachableError: The box is gone.
    """
    with HarborEnv(folder, image=image, verifier=verifier, seed=0, **limits) as env:
        env.reset()
        ended, total = False, 0.0
        while not ended:
            _, reward, terminated, truncated, _ = env.step(
                env.oracle_action() if solves else _FINISH
            )
            total, ended = total + reward, terminated or truncated
    return total


def _command(call: JsonCall | None) -> tuple[str | None, str | None]:
    """Return the command, None for `finish`, and what is wrong with a call."""
    if call is None:
        return None, f"There is no call. {_WRONG}"
    if call.error is not None:
        return None, f"{call.error} {_WRONG}"
    if call.name == "finish":
        return None, None
    if call.name != "bash":
        name = clip(printable(call.name), 80)
        return None, f"There is no tool {name!r}; there are: bash, finish."
    command = call.arguments.get("command")
    if not isinstance(command, str) or len(call.arguments) != 1:
        return None, f'bash takes one argument, "command", a text. {_WRONG}'
    return command, None
