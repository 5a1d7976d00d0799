"""The code that `scale.py` measures: gem.rollout and the adapters, each with simulated engines.

Each driver plays all episodes of a `Bench` with the real code of one adapter and returns what that
hands over. Only the engine's client is simulated: it answers with tokens and log-probabilities
when `scale_node.World` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scale_node import Engines, Policy, Texts, Work, World, shortest, wait_s

from gem import Env, register
from gem.core import Step
from gem.executors.asynchronous import AsyncEnv
from gem.rollout import Budget, ChatFormat, Request, Sample, play
from gem.tasks import Task
from gem_train.experiment.tasksets import DatasetRow, encode_task
from gem_train.packed import PackedTrajectory

ENV = "bench:Scale-v0"
PROMPT_TOKENS = 1024


class Paced(Env):
    """Takes the time that the world says; says something else every turn."""

    world: World

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._turn = seed or 0, 0
        return self._say(2), {}

    def step(self, action: str) -> Step:
        wait_s(self.world, self._episode, self._turn)
        self._turn += 1
        return self._say(), 0.0, self._turn == self.world.work.turns, False, {}

    def _say(self, times: int = 1) -> str:
        world = self.world
        with world:
            assert world.texts is not None
            return world.texts.said(self._episode, self._turn, times * world.work.read)


class Bench:
    """An iteration of episodes to be played."""

    def __init__(self, world: World, tokenizer: Any) -> None:
        self.world = world
        self.tokenizer = tokenizer
        work = world.work
        self.tasks = [Task(ENV, seed) for seed in range(work.episodes)]
        self.turn_tokens = 4 * work.sampled + 8
        self.response_tokens = work.turns * (self.turn_tokens + 4 * work.read)

    def together(self, one: Callable[[int], Coroutine[Any, Any, Any]]) -> list[Any]:
        """Play all episodes in one event loop."""

        async def all_of_them() -> list[Any]:
            self.world.start()
            return list(await asyncio.gather(*map(one, range(len(self.tasks)))))

        return asyncio.run(all_of_them())


def rollout(bench: Bench) -> list[Any]:
    """`gem.rollout.play`, and the bytes that every adapter hands over (`gem_train.packed`)."""
    world, chat = bench.world, ChatFormat(bench.tokenizer)
    budget = Budget(bench.turn_tokens, bench.response_tokens, PROMPT_TOKENS)

    async def sampler(request: Request) -> Sample:
        answer = await world.generate(request.prompt_ids)
        return Sample(answer.ids, answer.logprobs, "stop")

    async def one(index: int) -> PackedTrajectory:
        return PackedTrajectory.of(await play(bench.tasks[index], sampler, chat, budget=budget))

    return bench.together(one)


def verl(bench: Bench) -> list[Any]:
    """verl's agent loop `gem`, an object an episode as its agent-loop worker makes them."""
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap

    from gem_verl.rollout import GemAgentLoop

    world = bench.world
    config = _verl_config(
        f"data.max_prompt_length={PROMPT_TOKENS}",
        f"data.max_response_length={bench.response_tokens}",
        f"+gem.turn_tokens={bench.turn_tokens}",
    )
    OmegaConf.resolve(config)

    class Server:
        async def generate(
            self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
        ) -> Any:
            answer = await world.generate(prompt_ids)
            known = {"min_global_steps": 1, "max_global_steps": 1}
            return SimpleNamespace(
                token_ids=answer.ids,
                log_probs=answer.logprobs,
                stop_reason="completed",
                extra_fields=known,
            )

    server, params = Server(), {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
    data = DictConfigWrap(config.data)

    async def one(index: int) -> Any:
        loop = GemAgentLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=server,
            tokenizer=bench.tokenizer,
            processor=None,
            dataset_cls=None,
            data_config=data,
        )
        row = {"gem_task": encode_task(bench.tasks[index]), "index": index}
        output = await loop.run(params, session_id=0, global_steps=1, **row)
        return output.as_dict()

    return bench.together(one)


def _verl_config(*overrides: str) -> Any:
    from hydra import compose, initialize_config_dir
    from verl.trainer import main_ppo

    base = (
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.agent.default_agent_loop=gem",
        "algorithm.adv_estimator=gem_rebn",
        "trainer.v1.trainer_mode=gem_sync",
        "+gem.record=metrics",
    )
    with initialize_config_dir(str(Path(main_ppo.__file__).with_name("config")), version_base=None):
        return compose("ppo_trainer", overrides=[*base, *overrides])


def openrlhf(bench: Bench) -> list[Any]:
    """OpenRLHF's agent executor, with its worker hook."""
    from vllm import SamplingParams

    from gem_openrlhf import worker
    from gem_openrlhf.rollout import GemAgentExecutor
    from gem_openrlhf.settings import Settings

    worker._state["installed"] = True
    settings = Settings(prompt_tokens=PROMPT_TOKENS, turn_tokens=bench.turn_tokens)
    agent = type("AgentExecutor", (GemAgentExecutor,), {"settings": settings})()
    params = SamplingParams(max_tokens=bench.turn_tokens, logprobs=0)
    length = PROMPT_TOKENS + bench.response_tokens

    async def generate(prompt_ids: list[int], params: Any) -> Any:
        return _vllm(bench.world, prompt_ids, await bench.world.generate(prompt_ids))

    engine = SimpleNamespace(generate=generate)

    async def one(index: int) -> Any:
        label = DatasetRow(bench.tasks[index], number=index).encode()
        return await agent.execute("", label, params, length, bench.tokenizer, engine)

    return bench.together(one)


def _vllm(world: World, prompt_ids: list[int], answer: Any) -> Any:
    """vLLM's `RequestOutput`, as far as it is read."""
    with world:
        known = [
            {token: SimpleNamespace(logprob=logprob)}
            for token, logprob in zip(answer.ids, answer.logprobs, strict=True)
        ]
        output = SimpleNamespace(token_ids=answer.ids, logprobs=known, finish_reason="stop")
        return SimpleNamespace(prompt_token_ids=prompt_ids, outputs=[output], finished=True)


class SteppedEngine:
    """vLLM's `LLMEngine`: whoever calls `step` waits for a token of every sequence."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ended: list[tuple[str, list[int], tuple[int, int], float]] = []
        self._open = 0

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        """Take a request."""
        world, ids = self._world, prompt["prompt_token_ids"]
        with world:
            # The thread that calls this computes from the first request to the last answer.
            world.outstanding += not self._open
            self._open += 1
            place = world.begin(ids, lambda due: self._ended.append((request_id, ids, place, due)))

    def has_unfinished_requests(self) -> bool:
        """Whether there is something to sample."""
        return self._open > 0

    def step(self) -> list[Any]:
        """Sample a token; return the turns that ended."""
        world = self._world
        world.sleep(world.step_s())
        outputs = []
        with world:
            ended, self._ended = self._ended, []
            for request_id, ids, place, due in ended:
                output = _vllm(world, ids, world.answer(*place, due))
                output.request_id = request_id
                outputs.append(output)
            self._open -= len(outputs)
            world.outstanding -= not self._open and bool(outputs)
        return outputs

    def abort_request(self, request_ids: Sequence[str]) -> None:
        """Forget requests."""


def oat(bench: Bench) -> list[Any]:
    """oat's actor, which steps the engine in a thread."""
    from gem_oat.rollout import Actor
    from gem_oat.settings import parse

    n = len(bench.tasks)
    sizes = {
        "rollout_batch_size": n,
        "num_samples": 1,
        "train_batch_size": n,
        "max_train": n,
        "prompt_max_length": PROMPT_TOKENS,
        "max_model_len": PROMPT_TOKENS + bench.response_tokens,
        "generate_max_length": bench.turn_tokens,
    }
    flags = [f"--{name}={value}" for name, value in sizes.items()]
    actor: Any = object.__new__(Actor)
    actor.args = parse([f"--gem_tasks=gem:{ENV}", "--gpus=1", "--collocate", *flags])
    actor.actor_id = 0
    actor.llm = SimpleNamespace(llm_engine=SteppedEngine(bench.world))
    actor._chat = ChatFormat(bench.tokenizer)
    actor.ipc_client = SimpleNamespace(serialize_ipc=lambda episodes: episodes)
    tasks = [DatasetRow(task, number=i).encode() for i, task in enumerate(bench.tasks)]
    bench.world.start()
    episodes: list[Any] = actor.step(tasks, None, ["0"] * n)
    return episodes


def rl2(bench: Bench) -> list[Any]:
    """RL2's rollout, with the JSON of its requests and answers, but without sockets."""
    import aiohttp

    from gem_rl2 import rollout as module
    from gem_rl2.dataset import line

    world = bench.world

    class Response:
        status = 200

        def __init__(self, body: Any) -> None:
            self._body = body

        async def __aenter__(self) -> Response:
            json.dumps(self._body)
            answer = await world.generate(self._body["input_ids"])
            with world:
                tokens = [[p, i, None] for i, p in zip(*answer, strict=True)]
                reason = {"type": "stop"}
                meta = {"finish_reason": reason, "output_token_logprobs": tokens}
                self._text = json.dumps({"meta_info": meta})
            return self

        async def __aexit__(self, *exception: object) -> None:
            pass

        async def json(self, content_type: str | None) -> Any:
            return json.loads(self._text)

    class Session(contextlib.AbstractAsyncContextManager[Any]):
        def __init__(self, **options: Any) -> None:
            pass

        def post(self, url: str, json: Any) -> Response:
            return Response(json)

        async def __aexit__(self, *exception: object) -> None:
            pass

    module.aiohttp = SimpleNamespace(  # type: ignore[assignment]
        ClientSession=Session, ClientTimeout=aiohttp.ClientTimeout
    )
    helpers = _helpers("rl2")
    keys = [f"+gem.prompt_tokens={PROMPT_TOKENS}", f"+gem.turn_tokens={bench.turn_tokens}"]
    keys += ["+gem.advantage=rebn", f"+gem.response_tokens={bench.response_tokens}"]
    rollouts = module.Rollouts(helpers.settings(*keys), helpers.keys(*keys))
    its = SimpleNamespace(
        tokenizer=bench.tokenizer, router_url="", train_sampling_params={"temperature": 1.0}
    )

    async def one(index: int) -> Any:
        row = line(DatasetRow(bench.tasks[index], number=index))
        return await rollouts.release_rollout(its, row, True)

    return [bench.together(one), rollouts.take()]


def tinker(bench: Bench) -> list[Any]:
    """Tinker's direct loop, without the SDK's own threads and connections."""
    from gem_tinker.rollout import Sampling, play_batch
    from gem_tinker.settings import read

    async def sample(prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        with bench.world:
            ids = prompt.to_ints()
        answer = await bench.world.generate(ids)
        return SimpleNamespace(
            sequences=[SimpleNamespace(tokens=answer.ids, logprobs=answer.logprobs)]
        )

    words = ["model=m", f"train=gem:{ENV}", f"prompt_tokens={PROMPT_TOKENS}"]
    words += [f"response_tokens={bench.response_tokens}", f"turn_tokens={bench.turn_tokens}"]
    chat = ChatFormat(bench.tokenizer)
    config, client = read(words), SimpleNamespace(sample=sample)
    bench.world.start()
    played: list[Any] = asyncio.run(play_batch(client, chat, config, bench.tasks, Sampling()))
    return played


def _helpers(name: str) -> Any:
    """The helpers of a trainer's tests, which make its configuration."""
    path = Path(__file__).parents[1] / "tests" / name / "world.py"
    spec = importlib.util.spec_from_file_location("world", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["world"] = module
    spec.loader.exec_module(module)
    return module


DRIVERS: dict[str, Callable[[Bench], list[Any]]] = {
    "rollout": rollout,
    "verl": verl,
    "openrlhf": openrlhf,
    "oat": oat,
    "rl2": rl2,
    "tinker": tinker,
}


@contextlib.contextmanager
def calls_counted(world: World) -> Iterator[None]:
    """Have the world know of the calls to environments that are in progress."""
    with contextlib.ExitStack() as restored:
        for name in ("reset", "step"):
            original = getattr(AsyncEnv, name)
            restored.callback(setattr, AsyncEnv, name, original)
            setattr(AsyncEnv, name, _counted(original, world))
        yield


def _counted(call: Callable[..., Any], world: World) -> Callable[..., Any]:
    async def counted(*args: Any) -> Any:
        world.outstanding += 1
        try:
            return await call(*args)
        finally:
            world.outstanding -= 1

    return counted


def memory(name: str) -> int:
    """Return a line of this process's status in bytes (Linux)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def measure(driver: str, engines: Engines, work: Work, texts: Texts) -> dict[str, Any]:
    """Play an iteration; return what it took."""
    play_all, monotonic = DRIVERS[driver], time.monotonic
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory is from here on
    before = memory("VmRSS")
    world = Paced.world = World(engines, work, texts)
    asyncio.set_event_loop_policy(Policy(world))
    time.monotonic = world.now
    try:
        with calls_counted(world):
            played = play_all(Bench(world, texts.tokenizer))
        seconds = world.now()
    finally:
        time.monotonic = monotonic
        asyncio.set_event_loop_policy(None)
    turns = work.episodes * work.turns
    if world.answers != turns:
        raise RuntimeError(f"{driver}: {world.answers} turns were sampled, not {turns}")
    peak = memory("VmHWM") - before
    del played
    lags = sorted(world.lags)
    cpu = seconds - world._jumped - world.environment_s
    return {
        "lost": world.lost / (world.used + world.lost),
        "longer": seconds / shortest(engines, work) - 1,
        "cpu_ms": 1e3 * cpu / turns,
        "lag_p50_ms": 1e3 * lags[len(lags) // 2],
        "lag_p99_ms": 1e3 * lags[len(lags) * 99 // 100],
        "mb": peak / 1e6,
        "turns_s": turns / seconds,
        "busy": (cpu + world.environment_s) / seconds,
    }


def main() -> None:
    """Measure what the command line says, as JSON: a driver, a folder of texts, and cases."""
    driver, folder, *cases = sys.argv[1:]
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(Path(folder) / "tokenizer.json"), eos_token="<|im_end|>"
        )
        tokenizer.chat_template = (Path(folder) / "chat_template").read_text(encoding="utf-8")
        texts = Texts(tokenizer, (Path(folder) / "text").read_text(encoding="utf-8"))
        register(ENV, Paced)
        for case in cases:
            given = json.loads(case)
            engines, work = Engines(**given["engines"]), Work(**given["work"])
            # The first episodes import modules and compile templates.
            if case is cases[0]:
                measure(driver, engines, Work(4, 2, work.sampled, work.read, "wait"), texts)
            print(json.dumps(measure(driver, engines, work, texts)), flush=True)


if __name__ == "__main__":
    main()
