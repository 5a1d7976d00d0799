"""`JudgeSettings`: whom a judge asks, how, and what may vary without changing its verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem.fetching import http_address
from gem.tables import build, filled, setting

PLAIN = "plain"
"""Name of the template that comes with gem."""


def _check_odd(votes: int) -> None:
    if votes % 2 == 0:
        raise ConfigurationError(f"must be odd, so that a majority decides, got {votes}")


@dataclass(frozen=True)
class JudgeSampling:
    """How the judge's votes are sampled."""

    temperature: float = setting("softmax temperature", 0.0, least=0)
    top_p: float = setting("nucleus mass", 1.0, above=0, most=1)
    max_tokens: int = setting("most tokens of a vote, thinking included", 512, least=1)


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """A judge: a language model behind an OpenAI-compatible server.

    The address, limits of time and calls, and the cache do not change what is learned: a resumed
    run may have others.
    """

    url: str = setting(
        "address of the API, such as `http://127.0.0.1:8000/v1`",
        check=lambda url: http_address("url", url),
    )
    model: str = setting(
        "the server's name of the model, which every answer must repeat; `NAME@REVISION` asks for "
        "NAME and wants REVISION as the answers' `model` or `system_fingerprint`",
        check=filled,
    )
    template: str = setting(
        "`plain`, or a text file that tells the judge how to grade", PLAIN, check=filled
    )
    votes: int = setting(
        "votes for a verdict, with the seeds 0, 1, ...; a majority ends the vote early; more than "
        "1 need a temperature above 0",
        1,
        least=1,
        most=15,
        check=_check_odd,
    )
    answer_chars: int = setting(
        "characters of an answer that the judge is shown; the rest is cut off", 8_000, least=100
    )
    sampling: JudgeSampling = field(default_factory=JudgeSampling)
    calibration: str | None = setting(
        "file of labelled answers (JSON lines); the judge must agree with it before it is used",
        None,
        check=filled,
    )
    least_kappa: float = setting(
        "least agreement with the calibration file, Cohen's kappa", 0.6, above=0, most=1
    )
    allow_uncalibrated: bool = setting("use the judge without a calibration file", False)
    timeout_s: float = setting("time limit of a verdict, all its votes and retries", 60.0, above=0)
    budget_calls: int = setting(
        "requests to the judge in a run; a run that has used them up ends", 200_000, least=1
    )
    parallel: int = setting("most requests at a time, of each process", 128, least=1, most=1024)
    api_key_env: str = setting(
        "environment variable that holds the server's key, if it needs one", "OPENAI_API_KEY"
    )
    cache: str | None = setting(
        "SQLite file of votes and verdicts; by default `judges.sqlite` beside the run's record",
        None,
        check=filled,
    )
    cache_only: bool = setting("never ask: all votes are in the cache, or the run ends", False)

    @classmethod
    def from_mapping(cls, data: Any, path: str = "judge.") -> JudgeSettings:
        """Make settings from parsed TOML or JSON.

        Raises:
            ConfigurationError: A key is unknown or missing, or its value is not allowed.
        """
        made = build(cls, data, path)
        made.check(path)
        return made

    def check(self, path: str) -> None:
        """Raise `ConfigurationError` if settings contradict each other.

        Args:
            path: Prefix of the keys in messages.
        """
        if self.calibration is None and not self.allow_uncalibrated:
            raise ConfigurationError(
                f"{path}calibration: a judge needs a file of labelled answers (docs/judges.md), or "
                "allow_uncalibrated = true"
            )
        if self.votes > 1 and self.sampling.temperature == 0:
            raise ConfigurationError(
                f"{path}votes: {self.votes} votes at {path}sampling.temperature = 0 are one vote, "
                f"paid for several times; set {path}votes = 1, or a temperature above 0"
            )
        if self.cache_only and self.cache is None:
            raise ConfigurationError(
                f"{path}cache_only: needs {path}cache, the file with the votes"
            )

    def instructions(self) -> str | None:
        """Return the text of the template; None for the plain one.

        Raises:
            ConfigurationError: The file cannot be read, or is empty.
        """
        if self.template == PLAIN:
            return None
        return _text(self.template, "template")

    @property
    def asked(self) -> str:
        """The name of the model without its revision."""
        return self.model.partition("@")[0] or self.model

    def identity(self) -> str:
        """Return a hash of all that decides about votes: model, template, sampling, length.

        Raises:
            ConfigurationError: The template cannot be read.
        """
        # GEM's own words depend on the item: who keeps votes adds `prompts.messages`.
        decisive = (self.model, self.instructions(), asdict(self.sampling), self.answer_chars)
        return digest(decisive)

    def located(self, folder: Path) -> dict[str, Any]:
        """Return a mapping for `from_mapping` whose files can be read from anywhere.

        Args:
            folder: Of the run, where the cache is by default; absolute.
        """
        found = asdict(self)
        for name in ("calibration", "cache"):
            if found[name] is not None:
                found[name] = str(Path(found[name]).absolute())
        if self.template != PLAIN:
            found["template"] = str(Path(self.template).absolute())
        found["cache"] = found["cache"] or str(folder / "judges.sqlite")
        return found


HOW_ASKED = frozenset(
    {"url", "timeout_s", "budget_calls", "parallel", "api_key_env", "cache", "cache_only"}
)
"""Settings that change no verdict: a run that goes on may have others."""


def digest(value: Any) -> str:
    """Return a hash of JSON values."""
    import json

    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode("ascii")).hexdigest()


def _text(path: str, key: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{key}: cannot read {path}: {error}") from error
    if not text:
        raise ConfigurationError(f"{key}: {path} is empty")
    return text


def as_settings(value: JudgeSettings | Mapping[str, Any], path: str) -> JudgeSettings:
    """Return settings that may be given as a mapping."""
    return value if isinstance(value, JudgeSettings) else JudgeSettings.from_mapping(value, path)
