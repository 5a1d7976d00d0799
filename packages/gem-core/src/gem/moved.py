"""Import errors that say where the original GEM's names are in this package.

There are no aliases: constructors and observations differ, so an alias would fail later and less
clearly. `docs/moving.md` has the same tables and what else changed. Imports nothing of gem.
"""

from __future__ import annotations

import sys

MODULES: dict[str, str] = {
    "gem.envs.registration": "gem: register, make, make_vec, spec, list_envs",
    "gem.envs.math_env": "gem.envs.math: MathEnv, MathVisualEnv; grading: gem.grading.math.grade",
    "gem.envs.code_env": "gem.envs.code: CodeEnv; grading: gem.grading.code.grade",
    "gem.envs.qa_env": "gem.envs.qa: QaEnv, RuleTaker; grading: gem.grading.qa.grade",
    "gem.envs.game_env": "gem.envs.games, one module a game",
    "gem.envs.multi_turn": "gem.Env",
    "gem.envs.textarena": "gem.envs.games, one module a game",
    "gem.envs.terminal": "not included",
    "gem.envs.mcpmark": "not included",
    "gem.eval": "gem-bench: [[eval]] of a RunSpec",
    "gem.multiagent": "gem.multi: MultiAgentEnv, make_multi; one seat of a game: gem.seat: Seat",
    "gem.tools.base_tool": "gem.tools: Tool (parse and execute take the place of execute_action)",
    "gem.tools.mcp_server": "gem_cpu.time_server, or any MCP server",
    "gem.tools.mcp_tool": "gem.tools: MCPTool",
    "gem.tools.python_code_tool": "gem.tools: PythonTool (timeout_s)",
    "gem.tools.search_engine": "python -m gem search serve",
    "gem.tools.search_tool": "gem.tools: SearchTool",
    "gem.tools.tool_env_wrapper": "gem.wrappers: ToolEnv, or gem.make(id, tools=[...])",
    "gem.utils.constants": "nothing: terminated and truncated tell that an episode is over",
    "gem.utils.debug": "python -m gem play ID --policy random",
    "gem.utils.parsing": "gem.grading.formats: BOXED.extract(reply), FENCED_CODE.extract(reply)",
    "gem.utils.math_grader": "gem.grading.math: grade",
    "gem.utils.qa_em": "gem.grading.qa: grade, f1, normalise",
    "gem.utils.sandbox": "gem.sandbox: resolve(name) returns an executor",
    "gem.utils.seeding": "gem.seeding: stream, env_seed",
    "gem.vector.async_vector_env": "gem.make_vec (synchronous); gem.rollout.play runs many at once",
    "gem.vector.sync_vector_env": "gem.vector: SyncVectorEnv",
    "gem.vector.vector_env": "gem.vector: SyncVectorEnv",
    "gem.wrappers.episode_tracking_wrapper": "gem.wrappers: EpisodeTracking",
    "gem.wrappers.observation_wrapper": "gem.rollout.context: contexts take the place of wrappers",
    "gem.wrappers.stateful_observation": "gem.rollout.context: contexts take the place of wrappers",
    "gem.wrappers.wrapper_factory": "gem.make(id, wrappers=[...]); names: gem.wrappers.WRAPPERS",
}
"""Modules and whole packages of the original that do not exist here, with their replacement."""

NAMES: dict[str, str] = {
    "gem.print_envs": "gem.list_envs() returns the ids, python -m gem list prints them",
    "gem.ObservationWrapper": "gem.Wrapper; what a policy is shown: gem.rollout.context",
    "gem.core.EnvWrapper": "gem.Wrapper",
    "gem.core.ObservationWrapper": "gem.Wrapper; what a policy is shown: gem.rollout.context",
    "gem.wrappers.get_wrapper_fns": "gem.make(id, wrappers=[...])",
    "gem.wrappers.WRAPPER_FACTORY": "gem.wrappers.WRAPPERS",
}
"""Names that do not exist here, of modules that do, with their replacement."""

_PAGE = "docs/moving.md says what else changed"


def missing(module: str, name: str) -> Exception:
    """Return the error that the `__getattr__` of `module` raises for an unknown name.

    For a name of the original GEM it is an ImportError: `from module import name` would replace
    the message of an AttributeError by its own.
    """
    place = NAMES.get(f"{module}.{name}")
    if place is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return ImportError(
        f"{module}.{name} is a name of the original GEM. Here: {place}. {_PAGE}", name=module
    )


class _Finder:
    """An import finder, last in `sys.meta_path`: asked only if no other finder has the module."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        # Importing a submodule imports its package first: the package's error names them all.
        below = {key: place for key, place in MODULES.items() if f"{key}.".startswith(f"{name}.")}
        if not below:
            return
        places = "".join(f"\n  {key} -> {place}" for key, place in below.items())
        raise ModuleNotFoundError(
            f"No module named {name!r}: it is one of the original GEM. Here:{places}\n{_PAGE}",
            name=name,
        )


def install() -> None:
    """Add the finder to `sys.meta_path`, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
