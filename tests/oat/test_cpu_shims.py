"""The stand-ins that gem-cpu gives oat where there is no GPU and no Python 3.10."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

if os.environ.get("GEM_CPU") != "1":
    pytest.skip("the shims are off: GEM_CPU=1", allow_module_level=True)

import courier
import vllm
from vllm.sampling_params import SamplingParams

from gem_cpu import oat_plasma


class Counter:
    def add(self, a: int, b: int = 1) -> int:
        return a + b

    def fail(self) -> None:
        raise ValueError("no such counter")


@pytest.fixture
def server() -> Any:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    made = courier.Server(port=port)
    for name in ("add", "fail"):
        made.BindHandler(name, getattr(Counter(), name))
    made.Start()
    yield made
    made.Stop()


def test_calls_bring_back_results(server: Any) -> None:
    client = courier.Client(f"localhost:{server.port}")
    assert client.add(2, b=3) == 5
    futures = [client.futures.add(i) for i in range(30)]
    assert [future.result(20) for future in futures] == list(range(1, 31))


def test_an_exception_reaches_the_caller_and_the_connection_stays_good(server: Any) -> None:
    client = courier.Client(f"localhost:{server.port}")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such counter"):
            client.fail()
    with pytest.raises(RuntimeError, match="KeyError: 'multiply'"):
        client.multiply(2)
    assert client.add(1) == 2


def test_a_server_that_is_gone_is_an_error() -> None:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        listener.listen()
        client = courier.Client(f"localhost:{listener.getsockname()[1]}")
        future = client.futures.add(1)
        listener.accept()[0].close()
        with pytest.raises(RuntimeError, match="is gone"):
            future.result(20)


def test_objects_travel_through_shared_memory_once() -> None:
    with oat_plasma.start_plasma_store(1000) as (store, process):
        one, other = oat_plasma.connect(store), oat_plasma.connect(store)
        name = oat_plasma.ObjectID(one.put(b"episodes").binary())
        assert other.get(name) == b"episodes"
        other.delete([name])
        with pytest.raises(FileNotFoundError):
            one.get(name)
        assert process.poll() is None
    assert not Path(store).exists()


def test_stores_of_dead_processes_are_removed() -> None:
    code = "from gem_cpu.oat_plasma import start_plasma_store as s; import os; c = s()\n"
    code += "print(c.__enter__()[0], flush=True); c.__enter__; os.kill(c.gen.gi_frame.f_locals"
    code += "['process'].pid, 9); os._exit(0)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    left = Path(ended.stdout.split()[0])
    assert left.exists()
    with oat_plasma.start_plasma_store():
        assert not left.exists()


@pytest.fixture(scope="module")
def llm(model: Path) -> Any:
    return vllm.LLM(model=str(model), max_model_len=64)


def prompts(n: int) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": list(range(20, 25 + 3 * i))} for i in range(n)]


def generate(llm: Any, asked: Any, sampling: Any) -> list[Any]:
    """Outputs of prompts that come together, in order; `sampling` for each, or one for all."""
    engine, found = llm.llm_engine, {}
    each = sampling if isinstance(sampling, list) else [sampling] * len(asked)
    for number, (prompt, params) in enumerate(zip(asked, each, strict=True)):
        engine.add_request(str(number), prompt, params)
    while engine.has_unfinished_requests():
        found.update({output.request_id: output for output in engine.step()})
    return [found[str(number)] for number in range(len(asked))]


def answers(llm: Any, asked: Any, **params: Any) -> list[list[int]]:
    sampling = SamplingParams(**{"max_tokens": 8, "logprobs": 1, **params})
    return [list(o.outputs[0].token_ids) for o in generate(llm, asked, sampling)]


def test_a_batch_is_sampled_as_its_prompts_alone(llm: Any) -> None:
    together = answers(llm, prompts(5), top_k=1)
    assert together == [answers(llm, [p], top_k=1)[0] for p in prompts(5)]
    seeded = [SamplingParams(max_tokens=8, seed=i) for i in range(5)]
    batch = [o.outputs[0].token_ids for o in generate(llm, prompts(5), seeded)]
    alone = [
        generate(llm, [p], s)[0].outputs[0].token_ids
        for p, s in zip(prompts(5), seeded, strict=True)
    ]
    assert batch == alone


@pytest.mark.parametrize("gap", [1, 3])
def test_requests_that_come_and_go_are_sampled_as_alone(llm: Any, gap: int) -> None:
    engine = llm.llm_engine
    asked = [prompts(5)[i] for i in (0, 4, 1, 3, 2)]
    seeded = [SamplingParams(max_tokens=3 + i, seed=i, logprobs=1) for i in range(5)]
    found = {}
    for number, (prompt, params) in enumerate(zip(asked, seeded, strict=True)):
        engine.add_request(str(number), prompt, params)
        for _ in range(gap):
            found.update({output.request_id: output for output in engine.step()})
    while engine.has_unfinished_requests():
        found.update({output.request_id: output for output in engine.step()})
    for number, (prompt, params) in enumerate(zip(asked, seeded, strict=True)):
        [alone] = generate(llm, [prompt], params)
        [one], [other] = found[str(number)].outputs, alone.outputs
        assert one.token_ids == other.token_ids
        for token, mine, theirs in zip(one.token_ids, one.logprobs, other.logprobs, strict=True):
            assert mine[token].logprob == pytest.approx(theirs[token].logprob, abs=1e-5)


def test_an_aborted_request_is_forgotten(llm: Any) -> None:
    engine = llm.llm_engine
    [wanted] = answers(llm, prompts(1), top_k=1)
    for number, prompt in enumerate(prompts(3)):
        engine.add_request(str(number), prompt, SamplingParams(max_tokens=8, top_k=1))
        engine.step()
    engine.add_request("3", *prompts(1), SamplingParams())
    engine.abort_request(["1", "2", "3"])
    found = []
    while engine.has_unfinished_requests():
        found += engine.step()
    assert [(each.request_id, each.outputs[0].token_ids) for each in found] == [("0", wanted)]


def test_logprobs_are_the_models_own(llm: Any) -> None:
    [output] = generate(
        llm, prompts(1), SamplingParams(max_tokens=8, logprobs=1, temperature=0.5, seed=1)
    )
    ids = output.prompt_token_ids + output.outputs[0].token_ids
    with torch.no_grad():
        known = llm._model(torch.tensor([ids])).logits[0].log_softmax(-1)
    start = len(output.prompt_token_ids)
    for i, (token, logprob) in enumerate(
        zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True)
    ):
        assert logprob[token].logprob == pytest.approx(float(known[start + i - 1, token]), abs=1e-5)


def test_sampling_follows_the_distribution(llm: Any) -> None:
    [prompt] = prompts(1)
    many = [SamplingParams(max_tokens=1, seed=i, top_k=3) for i in range(600)]
    drawn = [o.outputs[0].token_ids[0] for o in generate(llm, [prompt] * 600, many)]
    with torch.no_grad():
        logits = llm._model(torch.tensor([prompt["prompt_token_ids"]])).logits[0, -1]
    best = logits.topk(3)
    assert set(drawn) <= set(best.indices.tolist())
    wanted = best.values.softmax(-1)
    for token, p in zip(best.indices.tolist(), wanted.tolist(), strict=True):
        # Five standard deviations.
        assert abs(drawn.count(token) / 600 - p) < 5 * (p * (1 - p) / 600) ** 0.5
    nucleus = [SamplingParams(max_tokens=1, seed=i, top_p=1e-6) for i in range(20)]
    likeliest = {o.outputs[0].token_ids[0] for o in generate(llm, [prompt] * 20, nucleus)}
    assert likeliest == {int(logits.argmax())}


def test_a_turn_ends_at_a_stop_token_or_at_its_limit(llm: Any) -> None:
    [free] = answers(llm, prompts(1), top_k=1)
    [cut] = generate(llm, prompts(1), SamplingParams(max_tokens=3, top_k=1))
    assert (cut.outputs[0].token_ids, cut.outputs[0].finish_reason) == (free[:3], "length")
    [stopped] = generate(
        llm, prompts(1), SamplingParams(max_tokens=8, top_k=1, stop_token_ids=[free[1]])
    )
    first = free.index(free[1])
    assert stopped.outputs[0].token_ids == free[: first + 1]
    assert stopped.outputs[0].finish_reason == "stop"


def test_a_prompt_that_is_too_long_is_refused(llm: Any) -> None:
    with pytest.raises(ValueError, match="max_model_len is 64"):
        answers(llm, [{"prompt_token_ids": [5] * 64}])


def test_weights_arrive_through_oats_worker_extension(model: Path) -> None:
    made = vllm.LLM(model=str(model), worker_extension_cls="oat.utils.distributed.WorkerWrap")
    before = answers(made, prompts(1), top_k=1)
    weights = {name: tensor.clone() for name, tensor in made._model.named_parameters()}
    for name, tensor in weights.items():
        made._worker.model_runner.model.load_weights([(name, torch.zeros_like(tensor))])
    assert answers(made, prompts(1), top_k=1) != before
    made._worker.model_runner.model.load_weights(weights.items())
    assert answers(made, prompts(1), top_k=1) == before
