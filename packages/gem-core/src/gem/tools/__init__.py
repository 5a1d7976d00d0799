"""Tools that a policy can call during an episode: search, MCP servers, and what packages add.

`gem.make(id, tools=["python"])` wraps an environment in `gem.wrappers.ToolEnv`, which calls them.
Tools import nothing of environments or rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from gem.errors import ConfigurationError
from gem.parameters import listed, require_known
from gem.parts import check_installed
from gem.plugins import load
from gem.specs import imported
from gem.tools.base import Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from gem.tools.mcp import MCPTool
    from gem.tools.search import SearchTool

__all__ = [
    "MCPTool",
    "SearchTool",
    "Tool",
    "ToolCall",
    "ToolLike",
    "ToolResult",
    "make_tools",
]

ENTRY_POINT_GROUP = "gem.tools"

ToolLike: TypeAlias = "Tool | str | Mapping[str, Any]"
"""A tool, its name, or `{"name": ..., <parameter>: <value>, ...}`."""

_CLASSES = {
    "search": "gem.tools.search:SearchTool",
    "mcp": "gem.tools.mcp:MCPTool",
}


def make_tools(tools: ToolLike | Sequence[ToolLike]) -> list[Tool]:
    """Return new tools; a tool passed as an instance is copied.

    Args:
        tools: One or several; a string may hold several names separated by commas. Installed
            packages add names through the entry-point group `gem.tools`.

    Raises:
        ConfigurationError: A tool's name is unknown, or a parameter value is not allowed.
        UnknownParameterError: A tool does not have one of the parameters.
    """
    return [_make(tool) for tool in listed("tools", tools, lambda one: isinstance(one, Tool))]


def _make(tool: ToolLike) -> Tool:
    if isinstance(tool, Tool):
        return tool.spawn()
    if isinstance(tool, str):
        tool = {"name": tool}
    if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str):
        raise ConfigurationError(
            f"a tool is a name, a mapping with 'name', or a gem.tools.Tool, got {tool!r:.80}"
        )
    parameters = dict(tool)
    name = parameters.pop("name")
    kind = _class(name)
    require_known(f"tool {name!r}", kind, parameters)
    return kind(**parameters)


def _class(name: str) -> type[Tool]:
    if name not in _CLASSES:
        check_installed("tool", name, ENTRY_POINT_GROUP)
        # Ignored: mypy wants a concrete class as `base`.
        return load(ENTRY_POINT_GROUP, name, Tool, _CLASSES)  # type: ignore[type-abstract]
    kind: type[Tool] = imported(_CLASSES[name])
    return kind


def __getattr__(name: str) -> Any:
    # Lazy: using one tool does not import the others.
    for path in _CLASSES.values():
        if path.endswith(f":{name}"):
            return imported(path)
    raise AttributeError(f"module 'gem.tools' has no attribute {name!r}")
