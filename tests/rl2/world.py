"""RL2's own objects for tests: its configuration, its tensors; and a server in SGLang's place."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from gem.trajectory import Trajectory
from gem_rl2.release import check_rl2
from gem_rl2.rollout import state_dicts
from gem_rl2.settings import Keys, Settings

RL2 = check_rl2()
TRAIN, PARAMS = "train_data", "rollout.train_sampling_params"
FILTERING = "rollout.dynamic_filtering"
BASE = [
    "actor.model_name=model",
    "actor.max_length_per_device=500",
    f"{FILTERING}=false",
    f"{TRAIN}.prompts_per_rollout=4",
    f"{TRAIN}.responses_per_prompt=2",
]


def config(*overrides: str) -> Any:
    """RL2's configuration, composed by Hydra from its own files and a command line."""
    folder = RL2.folder / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        found = compose(config_name="ppo", overrides=[*BASE, *overrides])
    OmegaConf.resolve(found)
    return found


def keys(*overrides: str) -> Keys:
    """What this package reads of it."""
    plain: Any = OmegaConf.to_container(config(*overrides))
    return Keys.read(plain)


def settings(*overrides: str) -> Settings:
    """The section `gem` of it."""
    plain: Any = OmegaConf.to_container(config(*overrides))
    return Settings.from_mapping(plain["gem"])


def tensors(batch: Sequence[Trajectory]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Episodes as RL2's own code holds them before advantages are computed, and its `cu_seqs`."""
    from RL2.datasets import pack_tensor_dicts

    rows = [_tensor_dicts(state_dicts(t, number)) for number, t in enumerate(batch)]
    packed = pack_tensor_dicts([row for of_episode in rows for row in of_episode])
    edges = [0]
    for of_episode in rows:
        edges.append(edges[-1] + len(of_episode))
    return packed, torch.tensor(edges)


def _tensor_dicts(dicts: list[dict[str, Any]]) -> list[dict[str, torch.Tensor]]:
    from RL2.datasets import state_dict_to_tensor_dict

    return [state_dict_to_tensor_dict(each) for each in dicts]


def critic(
    batch: dict[str, torch.Tensor],
    trajectories: Sequence[Trajectory],
    value: Callable[[int, int], float],
) -> None:
    """Give RL2's tensors values: of turns where they begin, 9 everywhere else."""
    values = torch.full(batch["states"].shape, 9.0)
    place = 0
    for episode, trajectory in enumerate(trajectories):
        for row in trajectory.training_rows():
            first = len(row.prompt_ids) - 1
            for span in row.spans:
                column = min(first + span.start, values.shape[1] - 1)
                values[place, column] = value(episode, span.turn)
            place += 1
    batch["values"] = values


class Server:
    """Answers requests to `/generate` in turn, and begins again after the last answer.

    The real SGLang is exercised by test_real_runs.py.
    """

    def __init__(self, tokenizer: Any, answers: Sequence[Any]) -> None:
        """Start it.

        Args:
            tokenizer: The model's.
            answers: Texts; an int is an HTTP status, a dict is given as it is, None never comes.
        """
        self.requests: list[dict[str, Any]] = []
        self.answers = list(answers)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    number = len(outer.requests)
                    outer.requests.append(body)
                answer = outer.answers[number % len(outer.answers)]
                if answer is None:
                    outer._closed.wait(30)
                    return
                status = answer if isinstance(answer, int) else 200
                if isinstance(answer, str):
                    answer = outer._sglang(tokenizer, answer, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    @staticmethod
    def _sglang(tokenizer: Any, text: str, body: dict[str, Any]) -> dict[str, Any]:
        ids = [*tokenizer.encode(text), tokenizer.eos_token_id]
        most = body["sampling_params"]["max_new_tokens"]
        cut = len(ids) > most
        ids = ids[:most]
        return {
            # As real SGLang: the text lacks the closing token that the ids have.
            "text": text,
            "output_ids": ids,
            "meta_info": {
                "finish_reason": {"type": "length" if cut else "stop"},
                "completion_tokens": len(ids),
                "output_token_logprobs": [[-0.5 - i, token, None] for i, token in enumerate(ids)],
            },
        }

    def close(self) -> None:
        """Stop answering; further connections are refused."""
        self._closed.set()
        self._http.shutdown()
        self._http.server_close()
