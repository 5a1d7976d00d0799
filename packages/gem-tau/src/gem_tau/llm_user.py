"""The user played by a language model behind any chat endpoint, the published setting."""

from __future__ import annotations

from gem.model_server import ModelServer
from gem.parameters import number
from gem.parameters import text as named
from gem_tau.data import Task, text
from gem_tau.scripted import GREETING, Scene


class LlmUser:
    """A customer played by a model; it sees the task's instructions and the conversation.

    The system prompt is tau2-bench's guidelines and the instructions. A server that does not answer
    raises, so that the episode is void; it never costs reward.

    Attributes:
        words: What the user said in this episode, in order.
    """

    def __init__(
        self, url: str, model: str, temperature: float, timeout_s: float, api_key_env: str
    ) -> None:
        """Store how the model is asked.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        self._server = ModelServer(
            url,
            model,
            timeout_s=timeout_s,
            api_key_env=api_key_env,
            sampling={"temperature": number("temperature", temperature)},
        )
        named("model", model)
        self.words: list[str] = []
        self._messages: list[dict[str, str]] = []

    def opening(self, scene: Scene) -> str:
        """Return the first message.

        Raises:
            UnreachableError: The server fails.
        """
        self.words = []
        self._messages = [{"role": "system", "content": scenario(scene.task)}]
        return self.reply(scene, GREETING)

    def reply(self, scene: Scene, message: str) -> str:
        """Return the answer to a message.

        Raises:
            UnreachableError: The server fails; the conversation is as before.
        """
        asked = [*self._messages, {"role": "user", "content": message or "(no message)"}]
        said = self._server.reply(asked)
        self._messages = [*asked, {"role": "assistant", "content": said}]
        self.words.append(said)
        return said


def scenario(task: Task) -> str:
    """Return what a user is told: tau2-bench's guidelines, and the task's instructions."""
    parts = [
        ("Reason for call", task.reason),
        ("Known info", task.known),
        ("Unknown info", task.unknown),
        ("Task instructions", task.manner),
    ]
    told = "\n\n".join(f"{title}:\n{part}" for title, part in parts if part)
    return f"{text('user_guidelines.md')}\n\n<scenario>\n{told}\n</scenario>"
