"""Agent files: what they may say, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_openrlhf.settings import Settings, load_settings


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"context": "window:2"}, "one row per episode: only 'chat'"),
        ({"thinking": "drop"}, "gem.thinking: .* one row per episode: choose 'keep'"),
        ({"advantage": "ppo"}, "unknown estimator 'ppo'"),
        ({"task_order": "random"}, "shuffled, file"),
        ({"prompt_tokens": 0}, "gem.prompt_tokens"),
        ({"top_k": 0}, "gem.top_k"),
        ({"turn_tokens": "8"}, "gem.turn_tokens must be of type int"),
        ({"max_failed_fraction": 2.0}, "gem.max_failed_fraction"),
    ],
)
def test_wrong_values_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Settings(**given)


def test_an_agent_file_is_read(world: Any, tmp_path: Path) -> None:
    path = world.agent_file(tmp_path, advantage="gae", turn_tokens=8)
    assert load_settings(str(path)) == Settings(advantage="gae", turn_tokens=8)


def test_files_of_others_have_no_settings(tmp_path: Path) -> None:
    path = tmp_path / "other.py"
    path.write_text("class AgentExecutor:\n    settings = 'something else'\n")
    assert load_settings(str(path)) is None
    assert load_settings(None) is None


def test_an_agent_file_may_register_environments(tmp_path: Path) -> None:
    """Several parts of OpenRLHF's process read it; it runs once."""
    path = tmp_path / "agent.py"
    path.write_text(
        "import gem\nfrom gem_openrlhf import GemAgentExecutor, Settings\n\n"
        "gem.register('test:FromAgentFile-v0', gem.Env)\n\n"
        "class AgentExecutor(GemAgentExecutor):\n    settings = Settings(top_k=5)\n"
    )
    assert load_settings(str(path)) is load_settings(str(path))


def test_a_missing_agent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.py"):
        load_settings(str(tmp_path / "nowhere.py"))


def test_the_budget_is_what_the_flags_leave(world: Any) -> None:
    budget = Settings(prompt_tokens=100, turns=3).budget(400, None)
    assert (budget.prompt_tokens, budget.response_tokens) == (100, 300)
    assert (budget.turn_tokens, budget.turns) == (300, 3)
