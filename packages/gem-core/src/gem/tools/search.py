"""The search tool: passages from a local index (`search_index`) or a server (`search_client`)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, ClassVar

from gem.errors import ConfigurationError
from gem.parameters import choice, flag, integer, optional, positive
from gem.tools.base import (
    TOOL_CALL,
    Tool,
    ToolCall,
    ToolResult,
    clip,
    count_blocks,
    failed,
    first_block,
    first_text,
    printable,
    text_schema,
)
from gem.tools.search_client import PROTOCOLS, ask, ask_cached, codec, protocol_of
from gem.tools.search_index import Hit, open_index

URL_VARIABLE = "SEARCH_URL"

_TAG = re.compile(r"<search>", re.IGNORECASE)
_END = "</search>"
_LONGEST_QUERY = 2_000


class SearchTool(Tool):
    """Answers `<search>query</search>`, or the JSON call `search`, with passages.

    The passages come from an index that all environments of this process share, or from a server.
    """

    tool_type: ClassVar[str] = "search"

    def __init__(
        self,
        *,
        index: str | Path | None = None,
        url: str | None = None,
        protocol: str | None = None,
        topk: int = 3,
        timeout_s: float = 5.0,
        retries: int = 2,
        cache: bool = True,
        max_output: int = 8192,
    ) -> None:
        """Store the parameters; nothing is loaded and no connection is made.

        Args:
            index: A local index: `"sample"`, a JSON lines file, or a folder written by
                `python -m gem search build`; needs the extra `search`.
            url: Address of a search server instead; without `index` and `url`, the value of the
                environment variable `SEARCH_URL`.
            protocol: The server's protocol: `"json"` (Search-R1) or `"msgpack"` (the original
                GEM; needs the extra `search`). None: JSON if the path of the address ends with
                `/retrieve`.
            topk: Most passages.
            timeout_s: Time limit of one request to a server.
            retries: Further attempts.
            cache: Whether this process caches a server's answers.
            max_output: Most characters of passages that the policy is shown.

        Raises:
            ConfigurationError: Neither an index nor a server is named, both are, a server's
                parameter is given with an index, or a value is not allowed.
        """
        if index is None and url is None:
            url = os.environ.get(URL_VARIABLE) or None
        if (index is None) == (url is None):
            raise ConfigurationError(
                "the search tool needs index='sample' (or your own), or url='http://...'; "
                f"{'both were' if url else 'neither was'} given and {URL_VARIABLE} is "
                f"{'not used' if url else 'not set'}"
            )
        self.index = None if index is None else str(index)
        self.url = url
        self.protocol = optional(choice, "protocol", protocol, tuple(PROTOCOLS))
        if url is not None:
            self.protocol = self.protocol or protocol_of(url)
        self.topk = integer("topk", topk, 1, 1000)
        self.timeout_s = positive("timeout_s", timeout_s)
        self.retries = integer("retries", retries, 0, 100)
        self.cache = flag("cache", cache)
        self.max_output = integer("max_output", max_output, 64, 10**7)
        for name, value, default in (
            ("protocol", protocol, None),
            ("timeout_s", timeout_s, 5.0),
            ("retries", retries, 2),
            ("cache", cache, True),
        ):
            if index is not None and value != default:
                raise ConfigurationError(
                    f"{name}={value!r} is for a search server, got index={self.index!r}: give url "
                    f"instead, or leave {name} out"
                )

    def reset(self) -> None:
        """Open the index; for a server, check only that its protocol's package is installed.

        Raises:
            DataError: The index cannot be read.
            MissingExtraError: The extra `search` is not installed.
        """
        if self.index is not None:
            open_index(self.index)
        elif self.protocol is not None:
            codec(PROTOCOLS[self.protocol])

    def instruction(self) -> str:
        """Return how to call the tool."""
        return (
            "You can search for information. Write what you are looking for inside "
            f"<search> </search>; {self._shows}."
        )

    def schemas(self) -> list[dict[str, Any]]:
        """Return the function `search`."""
        about = f"Search for information; {self._shows}."
        return [text_schema(self.tool_type, about, "query", "What to look for.")]

    @property
    def _shows(self) -> str:
        passages = "passage found is" if self.topk == 1 else f"{self.topk} passages found are"
        return f"the best {passages} shown to you"

    def parse(self, text: str) -> ToolCall | None:
        """Return the first query."""
        tag = first_block(text, _TAG, _END)
        found = first_text(text, [tag] if tag else [], self.tool_type, "query")
        if found is None:
            return None
        query, error = printable(" ".join(found.content.split())), found.error
        if error is None and not query:
            error = "There is nothing to search for."
        if error is None and len(query) > _LONGEST_QUERY:
            error = f"A query has at most {_LONGEST_QUERY} characters."
        ignored = count_blocks(text, _TAG, _END, found.end)
        ignored += count_blocks(text, TOOL_CALL, "</tool_call>", found.end)
        return ToolCall(self.tool_type, {"query": query}, error, ignored, found.cut)

    def execute(self, call: ToolCall) -> ToolResult:
        """Search; see `Tool.execute`."""
        if call.error is not None:
            return failed(call)
        return ToolResult(self._shown(self.search(call.arguments["query"])), ok=True)

    def search(self, query: str) -> list[Hit]:
        """Return the passages found, the best first.

        Raises:
            UnreachableError: The server does not answer.
        """
        if self.index is not None:
            return open_index(self.index).search(query, self.topk)
        assert self.url is not None and self.protocol is not None
        function = ask_cached if self.cache else ask
        hits = function(self.url, self.protocol, query, self.topk, self.timeout_s, self.retries)
        return hits[: self.topk]

    def _shown(self, hits: list[Hit]) -> str:
        if not hits:
            return "No passage was found."
        each = max(64, self.max_output // len(hits))
        return printable(
            "\n".join(
                f"Doc {number}(Title: {hit.title}) {clip(hit.text, each)}"
                for number, hit in enumerate(hits, start=1)
            )
        )
