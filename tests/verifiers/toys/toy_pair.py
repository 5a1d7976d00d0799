"""An environment of verifiers with two agents: a pupil answers, a teacher comments, twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

__all__ = ["Lesson", "Lessons"]


class LessonTask(vf.Task[vf.TaskData]):
    pass


class Lessons(vf.Taskset[LessonTask, vf.TasksetConfig]):
    def load(self) -> Iterator[LessonTask]:
        for n in range(3):
            yield LessonTask(vf.TaskData(prompt=None, name=f"lesson {n}"), self.config.task)


class LessonConfig(vf.EnvConfig):
    pupil: vf.AgentConfig = vf.AgentConfig()
    teacher: vf.AgentConfig = vf.AgentConfig()


class Lesson(vf.Env[LessonConfig]):
    async def setup(self, agents: Any) -> None:
        agents.teacher.trainable = False

    async def run(self, task: Any, agents: Any) -> None:
        async with (
            agents.pupil.interaction(task) as pupil,
            agents.teacher.interaction(task) as teacher,
        ):
            said = "Begin."
            for _ in range(2):
                answer = await pupil.turn(said)
                if answer.terminated:
                    return
                said = (await teacher.turn(answer.last_reply)).last_reply
            pupil.trace.record_reward("praise", float("good" in said))
            pupil.trace.record_metric("success", float("good" in said))
