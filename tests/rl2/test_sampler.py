"""SGLang's protocol, and what happens when the server does not keep to it."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from gem.errors import RolloutError
from gem.rollout import Request, Sample
from gem_rl2 import sglang as module
from gem_rl2.sglang import SglangSampler
from gem_train import sampling


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(sampling, "MOST_DELAY_S", 0.01)


def ask(
    url: str, *, retries: int = 2, tokens: int = 50, timeout_s: float = 30.0, **params: Any
) -> Sample:
    async def one() -> Sample:
        limit = aiohttp.ClientTimeout(total=timeout_s)
        async with aiohttp.ClientSession(timeout=limit) as session:
            sampler = SglangSampler(session, url, params, stop_ids=frozenset({2}), retries=retries)
            return await sampler(Request(0, [5, 6, 7], [5, 6, 7], True, tokens))

    return asyncio.run(one())


def test_ids_go_in_and_ids_with_logprobs_come_out(server: Any, tokenizer: Any) -> None:
    s = server(["abc"])
    sample = ask(s.url, temperature=0.5, top_k=3, max_new_tokens=7, stop=["x"])
    assert tokenizer.decode(sample.token_ids) == "abc<|im_end|>"
    assert sample.logprobs == [-0.5 - i for i in range(len(sample.token_ids))]
    assert sample.stop_reason == "stop"
    [request] = s.requests
    assert request["input_ids"] == [5, 6, 7]
    assert request["return_logprob"] is True
    params = request["sampling_params"]
    assert (params["temperature"], params["top_k"], params["stop"]) == (0.5, 3, ["x"])
    assert params["max_new_tokens"] == 50  # of the request, not of RL2's configuration
    assert params["stop_token_ids"] == [2]
    assert params["no_stop_trim"] is True


def test_a_cut_turn_is_told_from_one_that_just_fits(server: Any) -> None:
    length = len(ask(server(["abcd"]).url).token_ids)
    assert ask(server(["abcd"]).url, tokens=length - 1).stop_reason == "length"
    assert ask(server(["abcd"]).url, tokens=length).stop_reason == "stop"


def test_a_request_that_failed_is_repeated(server: Any) -> None:
    s = server([502, 500, "a"])
    assert ask(s.url).token_ids
    assert len(s.requests) == 3


def test_a_server_that_keeps_failing_ends_the_run_with_the_cause(server: Any) -> None:
    s = server([500])
    with pytest.raises(RolloutError, match=r"did not answer: 3 failures in .*the last: status 500"):
        ask(s.url)
    assert len(s.requests) == 3


def test_a_router_that_has_no_server_for_a_while_is_waited_for(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = server([503] * 8 + ["a"])
    assert ask(s.url, retries=0).token_ids
    monkeypatch.setattr(module, "UNAVAILABLE_S", 0.0)
    s = server([503])
    with pytest.raises(RolloutError, match="1 failures in .*the last: status 503"):
        ask(s.url, retries=0)
    assert len(s.requests) == 1


def test_a_server_that_is_gone_ends_the_run_with_the_cause(server: Any) -> None:
    s = server(["a"])
    s.close()
    with pytest.raises(RolloutError, match="2 failures.*Cannot connect"):
        ask(s.url, retries=1)


def test_a_server_that_hangs_ends_the_run_with_the_cause(server: Any) -> None:
    with pytest.raises(RolloutError, match="no answer within 0.1 s"):
        ask(server([None]).url, retries=0, timeout_s=0.1)


def test_a_request_that_the_server_refuses_is_not_repeated(server: Any) -> None:
    s = server([400])
    with pytest.raises(RolloutError, match="refuses a request with status 400"):
        ask(s.url)
    assert len(s.requests) == 1


def test_an_aborted_request_ends_the_run(server: Any) -> None:
    meta = {"finish_reason": {"type": "abort", "message": "too long"}, "output_token_logprobs": []}
    with pytest.raises(RolloutError, match="aborted a request.*too long"):
        ask(server([{"meta_info": meta}]).url)


@pytest.mark.parametrize("answer", [{}, {"meta_info": {"finish_reason": {"type": "stop"}}}, []])
def test_another_program_at_that_address_is_named(server: Any, answer: Any) -> None:
    s = server([answer if answer else {"detail": "hello"}])
    with pytest.raises(RolloutError, match="something else than SGLang"):
        ask(s.url)
