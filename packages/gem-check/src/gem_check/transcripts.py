"""Transcripts of episodes, for the command `info` and for the generator of docs/envs."""

from __future__ import annotations

from gem_check.playing import Episode, shown, won

# Turns of an episode that are shown before the last one.
_TURNS = 3
_LONGEST_LINE = 500


def transcript(episode: Episode) -> str:
    """Return an episode as text: its first turns and its last one."""
    lines = [shown(episode.first)]
    last = len(episode.steps) - 1
    for turn, (action, step) in enumerate(zip(episode.actions, episode.steps, strict=True)):
        if _TURNS <= turn < last:
            if turn == _TURNS:
                left_out = last - _TURNS
                lines.append(f"\n... {left_out} turn{'s' if left_out > 1 else ''} left out ...")
            continue
        observation, reward, terminated, truncated, _ = step
        end = " terminated" if terminated else " truncated" if truncated else ""
        ended_well = end and won(step)
        lines.append(f"\n>>> {action}\n[reward {reward:g}{end}{', won' if ended_well else ''}]")
        if shown(observation):
            lines.append(f"\n{shown(observation)}")
    return "\n".join(_clipped(line) for line in "\n".join(lines).splitlines())


def _clipped(line: str) -> str:
    line = line.rstrip()
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 3] + "..."
