"""An agent program of the standard library alone: asks for a sum until it is right, twice at most.

Its argument makes it do what a program should not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

HOW = sys.argv[1] if len(sys.argv) > 1 else ""
URL = os.environ["OPENAI_BASE_URL"]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def called(path: str, body: dict[str, Any] | None = None, url: str = URL, **headers: str) -> Any:
    headers |= {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/{path}", data, headers)) as answer:
        return answer.read().decode()


def asked(messages: list[dict[str, Any]], **further: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": messages, **further}
    reply: dict[str, Any] = json.loads(called("chat/completions", body))
    return dict(reply["choices"][0]["message"])


def main() -> None:
    seed = int(os.environ["GEM_SEED"])
    task = json.loads(Path(os.environ["GEM_TASK"]).read_text())
    a, b = task.get("a", seed % 7), task.get("b", seed % 5)
    reward: Any = None
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": f"{a}+{b}=?"},
    ]
    further: dict[str, Any] = {}
    match HOW:
        case "mute":
            Path(os.environ["GEM_REWARD"]).write_text("1")
            return
        case "silent":
            time.sleep(60)
        case "several":
            further = {"n": 2}
        case "image":
            messages[1]["content"] = [{"type": "image_url", "image_url": {"url": "data:"}}]
        case "parts":
            messages[1]["content"] = [
                {"type": "text", "text": f"{a}+{b}"},
                {"type": "text", "text": "=?"},
            ]
        case "stop":
            further = {"stop": ["\n"]}
        case "json":
            schema = {"type": "object", "properties": {"sum": {"type": "integer"}}}
            further = {
                "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}
            }
        case "example":
            messages[1:1] = [
                {"role": "user", "content": "1+1=?"},
                {"role": "assistant", "content": "2"},
            ]
        case "responses":
            called("responses", {"input": "hello"})
        case "models":
            messages[0]["content"] = json.loads(called("models"))["data"][0]["id"]
        case "parallel":
            threads = [threading.Thread(target=asked, args=(messages,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        case "child":
            child = subprocess.Popen(["sleep", "600"])
            print("child", child.pid, flush=True)
            messages[0]["content"] = str(child.pid)
        case "key":  # found by the API key alone
            base = URL.rsplit("/", 2)[0]
            body = {"model": "m", "messages": messages}
            key = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
            said = json.loads(called("chat/completions", body, f"{base}/v1", **key))
            reward = float(said["choices"][0]["message"]["content"] == str(a + b))
        case "stream":
            said = called("chat/completions", {"model": "m", "messages": messages, "stream": True})
            chunks = [line[6:] for line in said.split("\n") if line.startswith("data: ")]
            assert chunks.pop() == "[DONE]", said
            text = "".join(
                json.loads(chunk)["choices"][0]["delta"].get("content", "") for chunk in chunks
            )
            reward = float(text == str(a + b))
    turns, right = 0, False
    while reward is None and turns < 2 and not right:
        if HOW == "tools":
            further = {"tools": [TOOL]}
        reply = asked(messages, **further)
        turns += 1
        messages.append(reply)
        while calls := reply.get("tool_calls"):
            for call in calls:
                numbers = json.loads(call["function"]["arguments"])
                told = {"role": "tool", "tool_call_id": call["id"]}
                messages.append({**told, "content": str(sum(numbers.values()))})
            reply = asked(messages, **further)
            messages.append(reply)
        right = (reply["content"] or "").strip() == str(a + b)
        messages.append({"role": "user", "content": "No. Again."})
        match HOW:
            case "rewrite":
                messages[1]["content"] = "the sum, please"
            case "compact":
                messages = [{"role": "user", "content": f"so far: {len(messages)} messages"}]
            case "invent":
                messages.append({"role": "assistant", "content": "I am sure."})
            case "again":
                messages = messages[:2]
            case "strip":
                messages[2] = {
                    "role": "assistant",
                    "content": reply["content"].strip(),
                    "name": "a",
                }
    value: Any = {"reward": float(right), "success": right, "turns": turns, "more": [1]}
    match HOW:
        case "crash":
            raise RuntimeError("the board is gone")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "no-reward":
            return
        case "nan":
            value = float("nan")
        case "text":
            value = "1"
        case "number":
            value = 0.25
        case "limit":
            value |= {"truncated": True}
    Path(os.environ["GEM_REWARD"]).write_text(json.dumps(value if reward is None else reward))
    if HOW == "late":
        sys.exit(3)


main()
