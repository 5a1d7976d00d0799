"""A small MCP server of times and dates, for examples and tests: `python -m gem_cpu.time_server`.

It uses standard input and output; with `--port N`, streamable HTTP at `/mcp`.
"""

from __future__ import annotations

import argparse
import calendar
import functools
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

_FORMAT = "%Y-%m-%d %H:%M:%S"


def zone(name: str) -> ZoneInfo:
    """Return a time zone.

    Raises:
        ValueError: The zone is unknown.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise ValueError(f"unknown time zone {name!r}; zones are named like Asia/Tokyo") from None


def moment(time: str) -> datetime:
    """Parse a point in time; without a time zone it is UTC.

    Raises:
        ValueError: The text is not in the form `2025-03-23 12:30:00`.
    """
    try:
        when = datetime.fromisoformat(time)
    except ValueError:
        raise ValueError(f"{time!r} is not a time like 2025-03-23 12:30:00") from None
    return when if when.tzinfo else when.replace(tzinfo=timezone.utc)


def current_time(timezone: str = "UTC", format: str = _FORMAT) -> str:
    """Return the time now in a time zone, in a strftime format."""
    return datetime.now(zone(timezone)).strftime(format)


def relative_time(time: str) -> str:
    """Return how far a time (UTC, like 2025-03-23 12:30:00) is from now."""
    seconds = round((moment(time) - datetime.now(timezone.utc)).total_seconds())
    distance = str(timedelta(seconds=abs(seconds)))
    return f"in {distance}" if seconds >= 0 else f"{distance} ago"


def days_in_month(date: str) -> int:
    """Return the number of days of the month of a date like 2025-03-23."""
    when = moment(date)
    return calendar.monthrange(when.year, when.month)[1]


def get_timestamp(time: str) -> int:
    """Return the Unix time in milliseconds of a time (UTC, like 2025-03-23 12:30:00)."""
    return round(moment(time).timestamp() * 1000)


def convert_time(source_timezone: str, target_timezone: str, time: str) -> str:
    """Convert a time like 2025-03-23 12:30:00 from one time zone to another."""
    when = moment(time).replace(tzinfo=zone(source_timezone))
    return when.astimezone(zone(target_timezone)).strftime(_FORMAT)


def get_week_year(date: str) -> dict[str, int]:
    """Return the ISO week and its year of a date like 2025-03-23."""
    year, week, _ = moment(date).isocalendar()
    return {"week": week, "year": year}


FUNCTIONS = (
    current_time,
    relative_time,
    days_in_month,
    get_timestamp,
    convert_time,
    get_week_year,
)


def server() -> Any:
    """Make the MCP server."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    def explained(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except ValueError as error:
                # The SDK sends only a ToolError's message to the client.
                raise ToolError(str(error)) from None

        return call

    made = MCPServer("time")
    for function in FUNCTIONS:
        made.tool()(explained(function))
    return made


def main() -> None:
    """Serve until the client disconnects; over HTTP, until the process is ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, help="serve streamable HTTP at this port")
    port = parser.parse_args().port
    if port is None:
        server().run("stdio")
    else:
        server().run("streamable-http", host="127.0.0.1", port=port)


if __name__ == "__main__":
    main()
