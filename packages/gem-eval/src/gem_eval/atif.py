"""Episodes as trajectories of ATIF v1.7, the format of Harbor's agents, with their exact tokens.

https://harborframework.com/docs/trajectory-format. The first
observation is a step of the user, a reply is a step of the agent, and what the environment
answered is that step's observation. Where tokens are recorded, a reply has the ids of its whole
prompt, its own and their log-probabilities.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gem import __version__
from gem.errors import ConfigurationError, RecordError
from gem.tools.base import printable
from gem.trajectory import Turn
from gem_eval import native
from gem_eval.about import model_name, record_id, system_prompt
from gem_eval.contents import text_of
from gem_train.record import EpisodeRecord, RunRecord, read_run

_VERSION = "ATIF-v1.7"
_COUNTS = {
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "reply_tokens",
    "cached_tokens": "cached_tokens",
}
"""Metrics of a step, and what the note of a reply calls them."""


def write_trajectories(folder: Path, out: Path, *, only_success: bool = False) -> int:
    """Write the valid episodes of a record, one file each; return their number.

    Args:
        folder: Record of an evaluation or of a training run.
        out: Folder for the files, `000000.json` and so on by the episode's place in the record.
        only_success: Leave out episodes without success.

    Raises:
        ConfigurationError: There is such a folder with something in it, no episode is to be
            written, or one shows images.
        RecordError: The record cannot be read, or a file not be written.
    """
    run = read_run(folder)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} exists; choose another folder")
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    written = 0
    try:
        partial.mkdir(parents=True)
        for number, record in enumerate(run.episodes()):
            episode = record.trajectory
            if episode.valid and (episode.success or not only_success):
                text = json.dumps(trajectory(run, record, number), ensure_ascii=False)
                file = partial / f"{number:06}.json"
                file.write_text(printable(text), encoding="utf-8")
                written += 1
        if not written:
            what = "successful" if only_success else "valid"
            raise ConfigurationError(f"{folder} has no {what} episode; nothing is written")
        partial.rename(out)
    except OSError as error:
        raise RecordError(f"cannot write into {out}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return written


def trajectory(run: RunRecord, record: EpisodeRecord, number: int) -> dict[str, Any]:
    """Return a valid episode as ATIF's JSON.

    Args:
        run: Its record.
        record: The episode.
        number: Its place in the record, from 0.

    Raises:
        ConfigurationError: It shows images.
    """
    episode = record.trajectory
    agent = {"name": "gem", "version": __version__, "model_name": model_name(run)}
    if record.notes.get("tools"):
        agent["tool_definitions"] = record.notes["tools"]
    steps = [{"step_id": place, **step} for place, step in enumerate(_steps(run, record), 1)]
    metrics = [step.get("metrics", {}) for step in steps]
    totals: dict[str, Any] = {"total_steps": len(steps)}
    for name in _COUNTS:
        if counts := [each[name] for each in metrics if name in each]:
            totals[f"total_{name}"] = sum(counts)
    outcome = {"success": episode.success, "return": episode.total_reward, "end": episode.end}
    return {
        "schema_version": _VERSION,
        "session_id": record_id(run),
        "trajectory_id": f"{record_id(run)}-{number}",
        "agent": agent,
        "steps": steps,
        "final_metrics": {**totals, "extra": outcome},
        "extra": {
            "task": episode.task.to_dict(),
            "split": record.split,
            "iteration": record.iteration,
            "sample": record.notes.get("sample", 0),
        },
    }


def _steps(run: RunRecord, record: EpisodeRecord) -> Iterator[dict[str, Any]]:
    episode = record.trajectory
    notes = record.notes.get("calls", [])
    if system := system_prompt(run):
        yield {"source": "system", "message": system}
    shown = [turn.observation for turn in episode.turns]
    last = "" if episode.final_observation is None else episode.final_observation
    first, *later = [text_of(each, episode.task) for each in (*shown, last)]
    yield {"source": "user", "message": first}
    prompt: list[int] = []
    for place, (turn, answer) in enumerate(zip(episode.turns, later, strict=True)):
        note = notes[place] if place < len(notes) else {}
        prompt = [*([] if turn.fresh else prompt), *turn.context_ids]
        yield _reply(turn, note, prompt, answer, over=place + 1 == len(episode.turns))
        prompt += turn.response_ids


def _reply(
    turn: Turn, note: Mapping[str, Any], prompt: list[int], answer: str, *, over: bool
) -> dict[str, Any]:
    message = native.after(turn.text, note)
    calls = [
        {
            "tool_call_id": call["id"],
            "function_name": call["function"]["name"],
            "arguments": json.loads(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls", ())
    ]
    about = {"reward": turn.reward, "stop_reason": turn.stop_reason, "info": turn.info}
    step: dict[str, Any] = {
        "source": "agent",
        "message": message["content"],
        "llm_call_count": 1,
        "extra": about,
    }
    if thought := note.get("reasoning"):
        step["reasoning_content"] = thought
    if calls:
        step["tool_calls"] = calls
    if answer or not over:
        result = {"content": answer}
        step["observation"] = {
            "results": [{"source_call_id": calls[0]["tool_call_id"], **result} if calls else result]
        }
    if metrics := _metrics(turn, note, prompt):
        step["metrics"] = metrics
    return step


def _metrics(turn: Turn, note: Mapping[str, Any], prompt: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {ours: note[name] for ours, name in _COUNTS.items() if name in note}
    if prompt:
        found |= {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(turn.response_ids),
            "prompt_token_ids": prompt[:],
            "completion_token_ids": turn.response_ids,
        }
        if turn.logprobs is not None:
            found["logprobs"] = turn.logprobs
    return found
