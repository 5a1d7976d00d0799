"""Records of `gem eval` as logs of inspect-ai, which its viewer and its data frames read.

A log is what `inspect eval gem_eval/env` would have left (`gem_eval.inspect`): one for each
environment, a sample for each episode, epochs for the samples of a task. Void episodes are samples
with an error and without a score.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from inspect_ai.log import EvalLog, recompute_metrics, write_eval_log

from gem.contract import shown
from gem.errors import ConfigurationError, RecordError
from gem.tasks import TaskSet
from gem.tools.base import printable
from gem_eval import __version__, native
from gem_eval.about import record_id, system_prompt
from gem_eval.inspect import sample_id  # also registers the scorers and their interval
from gem_eval.runner import KIND
from gem_eval.tasks import Part, parse_tasks
from gem_train.record import EPISODES, RUN, EpisodeRecord, RunRecord, read_run

_STOPS = {"length": "max_tokens", "content_filter": "content_filter"}
_METRICS = [{"name": "inspect_ai/mean"}, {"name": "inspect_ai/stderr"}]


def write_logs(folder: Path, out: Path) -> list[Path]:
    """Write a record as logs of inspect-ai; return their files, one for each environment.

    The same record gives the same names of files, which replace earlier ones. The episodes of an
    environment are in memory at once.

    Args:
        folder: Of the record.
        out: Folder for the logs; it is created.

    Raises:
        ConfigurationError: The folder holds no evaluation.
        RecordError: The record cannot be read, or a log not be written.
    """
    run = read_run(folder)
    if run.meta.get("kind") != KIND:
        raise ConfigurationError(f"{folder} holds no evaluation")
    settings = run.meta["settings"]
    written = []
    for part in parse_tasks(settings["tasks"]):
        log = EvalLog.model_validate(_log(run, settings, part))
        recompute_metrics(log)
        when = re.sub(r"[:+]", "-", log.eval.created)
        path = out / f"{when}_{re.sub(r'[^A-Za-z0-9.]+', '-', part.name)}_{log.eval.task_id}.eval"
        try:
            out.mkdir(parents=True, exist_ok=True)
            write_eval_log(log, path)
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error}") from error
        written.append(path)
    return written


def _log(run: RunRecord, settings: Mapping[str, Any], part: Part) -> dict[str, Any]:
    model = str(run.meta.get("trainer"))
    system = system_prompt(run)
    samples = [
        # A log can have no lone surrogates; a record can, as it is ASCII.
        json.loads(printable(json.dumps(_sample(each, part, model, system), ensure_ascii=False)))
        for each in run.episodes(part.split)
    ]
    expected = len(part.tasks) * settings.get("samples", 1)
    began, ended = (_time(run.folder / name) for name in (RUN, EPISODES))
    usage = _usage(call for each in samples for call in each["metadata"]["calls"])
    return {
        "status": "success" if len(samples) >= expected else "started",
        "eval": {
            "eval_id": record_id(run, part.split, "eval"),
            "run_id": record_id(run),
            "task_id": record_id(run, part.split),
            "created": began,
            "task": "gem_eval/env",
            "task_registry_name": "gem_eval/env",
            "task_display_name": part.name,
            "task_args": _task_args(part.tasks, settings),
            "model": model,
            "model_base_url": settings.get("url"),
            "model_generate_config": _generate_config(settings),
            "config": {"epochs": settings.get("samples", 1)},
            "dataset": {
                "name": part.name,
                "samples": len(part.tasks),
                "sample_ids": [sample_id(part.name, task.seed) for task in part.tasks],
                "shuffled": False,
            },
            "packages": {"gem-eval": __version__},
            "metadata": {
                "settings": dict(settings),
                "versions": run.meta.get("versions"),
                "record": str(run.folder),
            },
            "scorers": [
                {"name": "success", "metrics": [*_METRICS, _interval(share=True)]},
                {"name": "return", "metrics": [*_METRICS, _interval(share=False)]},
            ],
        },
        "stats": {
            "started_at": began,
            "completed_at": ended,
            "model_usage": {model: usage} if usage else {},
        },
        "samples": samples,
    }


def _sample(record: EpisodeRecord, part: Part, model: str, system: str | None) -> dict[str, Any]:
    trajectory, calls = record.trajectory, record.notes.get("calls", [])
    messages = _messages(record, model, system)
    usage = _usage(calls)
    sample = {
        "id": sample_id(part.name, trajectory.task.seed),
        "epoch": record.notes.get("sample", 0) + 1,
        "input": f"seed {trajectory.task.seed} of {part.name}",
        "target": "",
        "messages": messages,
        "metadata": {**trajectory.task.to_dict(), "calls": calls},
        "model_usage": {model: usage} if usage else {},
        "turn_count": len(trajectory.turns),
    }
    if trajectory.failure is not None:
        text = str(trajectory.failure)
        error = {"message": text, "traceback": text, "traceback_ansi": text}
        return {**sample, "error": error}
    about = {
        "explanation": shown(trajectory.final_observation or ""),
        "metadata": {"rewards": trajectory.rewards, "end": trajectory.end},
    }
    scores = {
        "success": {"value": float(trajectory.success), **about},
        "return": {"value": trajectory.total_reward, **about},
    }
    replies = [each for each in messages if each["role"] == "assistant"]
    if replies:
        reason = calls[-1].get("finish_reason") if calls else None
        choice = {"message": replies[-1], "stop_reason": _STOPS.get(str(reason), "stop")}
        sample["output"] = {"model": model, "choices": [choice]}
    return {**sample, "scores": scores}


def _messages(record: EpisodeRecord, model: str, system: str | None) -> list[dict[str, Any]]:
    """Return the conversation; the observation that ended it is in the scores."""
    calls: list[Mapping[str, Any]] = record.notes.get("calls", [])
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    note: Mapping[str, Any] | None = None
    for number, turn in enumerate(record.trajectory.turns):
        messages += native.before(shown(turn.observation), note)
        note = calls[number] if number < len(calls) else {}
        reply = native.after(turn.text, note)
        if thought := note.get("reasoning"):
            reasoning = {"type": "reasoning", "reasoning": thought}
            reply["content"] = [reasoning, {"type": "text", "text": reply["content"]}]
        if "tool_calls" in reply:
            reply["tool_calls"] = [
                {
                    "id": call["id"],
                    "function": call["function"]["name"],
                    "arguments": json.loads(call["function"]["arguments"]),
                }
                for call in reply["tool_calls"]
            ]
        messages.append({**reply, "model": model})
    return messages


def _usage(calls: Iterator[Mapping[str, Any]] | Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the tokens of calls; nothing if the server did not count them."""
    names = ("prompt_tokens", "reply_tokens", "cached_tokens", "reasoning_tokens")
    found: dict[str, int] = {}
    for call in calls:
        for name in names:
            if name in call:
                found[name] = found.get(name, 0) + call[name]
    if not found:
        return {}
    prompt, reply, cached, reasoning = (found.get(name, 0) for name in names)
    return {
        # Not those that were cached, which inspect-ai counts apart.
        "input_tokens": prompt - cached,
        "input_tokens_cache_read": cached,
        "output_tokens": reply,
        "reasoning_tokens": reasoning,
        "total_tokens": prompt + reply,
    }


def _task_args(tasks: TaskSet, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `gem_eval.inspect.env` for the same tasks."""
    args = {"id": tasks.uri, "turns": settings.get("turns"), "system": settings.get("system")}
    return {name: value for name, value in args.items() if value is not None}


def _generate_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    sampling = settings.get("sampling") or {}
    known = {name: sampling.get(name) for name in ("temperature", "top_p", "max_tokens")}
    return {name: value for name, value in known.items() if isinstance(value, int | float)}


def _interval(*, share: bool) -> dict[str, Any]:
    return {"name": "gem_eval/interval", "options": {"share": share}}


def _time(path: Path) -> str:
    """Return when a file was written last: `run.json` at the start, or when tasks are added."""
    when = path.stat().st_mtime if path.exists() else 0.0
    return datetime.fromtimestamp(when, timezone.utc).isoformat(timespec="seconds")
