"""The model of `--model`: what plays the episodes, and what is known of it.

A server is asked in one of three tiers. `tokens`: it is sent token ids and says those that it
sampled; episodes are those of training. `messages`: it is sent the conversation and says the tokens
that it made of it. `text`: it is sent the conversation and says text, as any server can.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gem.__main__ import at_least
from gem.errors import ConfigurationError
from gem.rollout import Budget, ChatFormat, Prompting, Sampler
from gem.rollout.thinking import MODES
from gem.tables import check, json_or_text
from gem_bench.models import resolve_model
from gem_eval.client import ChatClient
from gem_eval.completions import GenerateSampler, HttpSampler, Notes, VllmSampler
from gem_eval.episode import Plays, play
from gem_eval.players import ModelPlayer, Player, ScriptedPlayer, SilentPlayer
from gem_eval.scripted import POLICIES
from gem_eval.server import Served, Server
from gem_eval.tasks import Play
from gem_eval.tokens import Sampling, TokenPlays, setting_of
from gem_eval.trained import Trained, find_trained
from gem_train.preflight import environments

OPENAI, LOCAL, RUN = "openai:", "hf:", "run:"
TIERS = ("tokens", "messages", "text")
DTYPES = ("float32", "bfloat16", "float16")
MAX_TOKENS = 1024
_SILENT = "noop"
_OPENAI_URL = "https://api.openai.com/v1"
_VLLM_WITH_IDS = (0, 10, 2)
_OF_TOKENS = ("context", "thinking", "template", "tokenizer", "context_tokens")
OF_SERVERS = ("url", "tier", "tokenizer", "key_env", "call_retries", "timeout_s")
OF_LOCAL = ("dtype",)
_OF_COSTS = ("price", "max_cost", "max_tokens_total")
_RESERVED = ("model", "messages", "stream", "n")
"""Fields of a request that nobody else sets."""
_RESERVED_OF_TOKENS = (
    *("prompt", "input_ids", "text", "max_tokens", "max_new_tokens", "echo"),
    *("stop", "stop_token_ids", "return_token_ids"),
)


@dataclass(frozen=True)
class Model:
    """A model that can play."""

    plays: Plays
    settings: Mapping[str, Any]
    """What was asked for; a continued evaluation must ask for the same."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What was found, likewise: `tier`, and what its tokens depend on."""
    around: Callable[[], AbstractAsyncContextManager[object]] = contextlib.nullcontext
    """Made and entered in the event loop while episodes are played."""
    player: Player | None = None
    """Of a model that is asked by messages: what replies."""


def choose(args: argparse.Namespace) -> Model:
    """Return the model that the command line names.

    Raises:
        ConfigurationError: There is no such model, or it cannot do what is asked for.
        MissingExtraError: It needs a package that is not installed.
    """
    name = args.model
    if name in (*POLICIES, _SILENT):
        if args.samples > 1:
            raise ConfigurationError(
                f"--model {name} plays a task the same way every time: use --episodes, "
                "not --samples"
            )
        if given := given_options(args, (*model_options(), *_OF_COSTS)):
            raise ConfigurationError(
                f"--model {name} asks no model: {', '.join(given)} would have no effect"
            )
        player = SilentPlayer() if name == _SILENT else ScriptedPlayer(name)
        return Model(partial(play, player=player), {"model": name})
    for scheme, make in ((OPENAI, _served), (LOCAL, _local), (RUN, _local)):
        if name.startswith(scheme) and name != scheme:
            return make(args)
    raise ConfigurationError(
        f"--model must be {', '.join(POLICIES)}, {_SILENT}, {OPENAI}NAME, {LOCAL}MODEL or "
        f"{RUN}FOLDER, got {name!r}"
    )


def given_options(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Return those of some options that are not their defaults."""
    usual = model_options()
    return [
        f"--{name.replace('_', '-')}"
        for name in names
        if getattr(args, name, None) != usual.get(name)
    ]


def model_options() -> dict[str, Any]:
    """Return the options of models with their defaults."""
    known = argparse.ArgumentParser(add_help=False)
    add_options(known)
    return vars(known.parse_args([]))


def _refuse(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    for option in given_options(args, names):
        raise ConfigurationError(f"{option} {why}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of models, which `choose` reads besides `model`, `samples`, `concurrency`."""
    group = parser.add_argument_group("how the model is asked")
    add = group.add_argument
    add(
        "--url",
        help="of the server's API, such as http://localhost:8000/v1 (https://api.openai.com/v1)",
    )
    about = "environment variable with the server's key (OPENAI_API_KEY)"
    add("--key-env", default="OPENAI_API_KEY", metavar="NAME", help=about)
    defaults = "default: the server's; of a model that is asked by tokens 1"
    add("--temperature", type=at_least(float, 0), metavar="T", help=defaults)
    add("--top-p", type=at_least(float, 0), metavar="P", help=defaults)
    about = "most tokens of a reply (1024; run: the run's; --param max_tokens=null: the server's)"
    add("--max-tokens", type=at_least(int, 1), metavar="N", help=about)
    about = "any other field of the request; VALUE is JSON or else text, null leaves it out"
    add("--param", action="append", default=[], metavar="NAME=VALUE", help=about)
    add("--system", metavar="TEXT", help="system message")
    about = "demand how a server is asked; default: tokens with --tokenizer, else what it can"
    add("--tier", choices=TIERS, help=about)
    about = "further attempts of a call that the server failed (8)"
    add("--call-retries", type=at_least(int, 0), default=8, metavar="N", help=about)
    about = "limit of one attempt of a call (600)"
    add("--timeout-s", type=at_least(float, 0.001), default=600.0, metavar="S", help=about)

    group = parser.add_argument_group("how a model that is asked by tokens is prompted")
    add = group.add_argument
    about = "the model's folder or hub id; with --tier tokens the default is what the server says"
    add("--tokenizer", metavar="MODEL", help=about)
    about = "most tokens of prompt and reply (the model's)"
    add("--context-tokens", type=at_least(int, 2), metavar="N", help=about)
    add("--context", metavar="NAME", help="chat, concat, concat_with_action or window:K (chat)")
    add("--thinking", choices=MODES, help="what becomes of earlier thinking (keep)")
    about = "argument of the chat template, such as enable_thinking=false"
    add("--template", action="append", default=[], metavar="NAME=VALUE", help=about)
    add("--dtype", choices=DTYPES, default="float32", help="of hf: and run: (float32)")


def _served(args: argparse.Namespace) -> Model:
    _refuse(args, OF_LOCAL, f"is of models in this process ({LOCAL}, {RUN}), not of servers")
    key = os.environ.get(args.key_env)
    if key is None and args.url is None:
        raise ConfigurationError(
            f"{_OPENAI_URL} needs a key in the environment variable {args.key_env}; a server of "
            "your own is named by --url http://localhost:8000/v1"
        )
    params = _params(args.param)
    server = Server(
        args.url or _OPENAI_URL,
        args.model.removeprefix(OPENAI),
        key=key,
        concurrency=args.concurrency,
        retries=args.call_retries,
        timeout_s=args.timeout_s,
    )
    served = server.served()
    tier = args.tier or _tier(args, served)
    settings = {"model": args.model, "url": server.url, "system": args.system}
    # Another checkpoint may be served under the same name.
    about = {"tier": tier, "engine": served.engine, "root": served.root}
    about = {name: value for name, value in about.items() if value is not None}
    if tier == "tokens":
        return _by_tokens(args, params, server, served, settings, about)
    why = f"is of models that are asked by tokens (--tokenizer, --tier tokens), not by {tier}"
    _refuse(args, _OF_TOKENS, why)
    sampling = {
        "temperature": args.temperature,
        "top_p": args.top_p,
        "max_tokens": args.max_tokens or MAX_TOKENS,
        **params,
    }
    sampling = {field: value for field, value in sampling.items() if value is not None}
    client = ChatClient(server, sampling, tokens=tier == "messages")
    player = ModelPlayer(client, args.system)
    settings["sampling"] = sampling
    return Model(partial(play, player=player), settings, about, lambda: server, player)


def _by_tokens(
    args: argparse.Namespace,
    params: Mapping[str, Any],
    server: Server,
    served: Served,
    settings: Mapping[str, Any],
    about: Mapping[str, Any],
) -> Model:
    from gem_eval.local import chat_format

    _refuse_params(params, _RESERVED_OF_TOKENS)
    root = None if served.root == server.model else served.root
    tokenizer = args.tokenizer or root
    if tokenizer is None:
        raise ConfigurationError(
            f"--tier tokens: {server.url} does not say what {server.model!r} was loaded from; name "
            "the model's folder or hub id with --tokenizer"
        )
    tokenizer = resolve_model(tokenizer, "--tokenizer")
    prompting = _prompting(args, Prompting())
    chat = chat_format(tokenizer, prompting)
    most = _context_tokens(args, served.context_tokens, server.url)
    kind: type[HttpSampler] = GenerateSampler if served.engine == "sglang" else VllmSampler
    given = {"temperature": args.temperature, "top_p": args.top_p}
    given = {name: value for name, value in given.items() if value is not None}
    sampling = {**kind.SAMPLING, **given, **params}
    sampling = {name: value for name, value in sampling.items() if value is not None}
    if "seed" in sampling and "seed" not in kind.SAMPLING:
        raise ConfigurationError(
            "--param seed: SGLang's requests know no `seed`; its samples differ from run to run"
        )

    def samplers(each: Play, notes: Notes) -> contextlib.AbstractContextManager[Sampler]:
        episode = (each.task.seed, each.sample)
        return contextlib.nullcontext(kind(server, chat, sampling, episode, notes))

    turn = args.max_tokens or MAX_TOKENS
    budget = Budget(min(turn, most), most, most, context_tokens=most)
    about = {**about, "tokenizer": tokenizer, "logprobs": kind.LOGPROBS}
    settings = {**settings, "sampling": sampling}
    return _exact(samplers, chat, budget, prompting, settings, about, lambda: server)


def _local(args: argparse.Namespace) -> Model:
    """Return a model of this process: one of transformers, or what a run has trained."""
    from gem_eval.local import SAMPLING, context_tokens, load, local_model, own_chat_format

    scheme, _, name = args.model.partition(":")
    _refuse(args, OF_SERVERS, f"is of servers, not of {scheme}:")
    params = _params(args.param)
    _refuse_params(params, _RESERVED_OF_TOKENS)
    trained = (
        find_trained(Path(name)) if f"{scheme}:" == RUN else Trained(resolve_model(name, "--model"))
    )
    policy = trained.spec.policy if trained.spec else None
    prompting = _prompting(args, policy or Prompting())
    chat = own_chat_format(trained.model, prompting)
    loaded = load(trained, args.dtype)
    most = _context_tokens(args, context_tokens(loaded), args.model)
    turn = args.max_tokens or (policy.turn_tokens if policy else MAX_TOKENS)
    budget = Budget(min(turn, most), most, most, context_tokens=most)
    limits: dict[str, Budget] = {}
    if trained.spec and policy:
        # Of other environments and parameters nobody knows how long their prompts are.
        same = {
            name: getattr(policy, name) for name in ("response_tokens", "prompt_tokens", "turns")
        }
        limits = {setting_of(task): replace(budget, **same) for task in environments(trained.spec)}
    given = {"temperature": args.temperature, "top_p": args.top_p}
    given = {name: value for name, value in given.items() if value is not None}
    sampling = {**SAMPLING, **given, **params}
    model = local_model(loaded, chat, sampling)
    about = {"engine": "transformers", "dtype": args.dtype, "trained": trained.name}
    about |= {"tokenizer": trained.model, "logprobs": "raw"}
    settings = {"model": args.model, "system": args.system, "sampling": sampling}
    if limits:
        about |= {"trained_budget": asdict(next(iter(limits.values())))}
    return _exact(model.episode, chat, budget, prompting, settings, about, lambda: model, limits)


def _exact(
    sampling: Sampling,
    chat: ChatFormat,
    budget: Budget,
    prompting: Prompting,
    settings: Mapping[str, Any],
    about: Mapping[str, Any],
    around: Callable[[], AbstractAsyncContextManager[object]],
    trained: Mapping[str, Budget] | None = None,
) -> Model:
    """Return a model that is asked by tokens."""
    from gem_eval.local import tokenizer_hash

    asked = {name: getattr(prompting, name) for name in asdict(Prompting())}
    about = {
        "tier": "tokens",
        **about,
        "tokenizer_hash": tokenizer_hash(chat.tokenizer),
        "prompting": asked,
        "budget": asdict(budget),
    }
    plays = TokenPlays(sampling, chat, budget, prompting.context, trained)
    return Model(plays, settings, about, around)


def _tier(args: argparse.Namespace, served: Served) -> str:
    if args.tokenizer is not None:
        return "tokens"
    return "messages" if served.version >= _VLLM_WITH_IDS else "text"


def _context_tokens(args: argparse.Namespace, known: int | None, of: str) -> int:
    wanted: int | None = args.context_tokens
    if known is None and wanted is None:
        raise ConfigurationError(
            f"{of} does not say how long its model's context is: --context-tokens N"
        )
    if wanted is not None and known is not None and wanted > known:
        raise ConfigurationError(f"--context-tokens {wanted}: the context of {of} has {known}")
    return wanted or known or 0


def _prompting(args: argparse.Namespace, base: Prompting) -> Prompting:
    """Return how the model is prompted: as `base` says but for what is given."""
    given = {
        "context": args.context,
        "system_prompt": args.system,
        "thinking": args.thinking,
        "template_kwargs": _pairs("--template", args.template) or None,
    }
    kept = {name: getattr(base, name) for name, value in given.items() if value is None}
    prompting = Prompting(**{**given, **kept})
    check(prompting, "--")
    return prompting


def _params(pairs: Sequence[str]) -> dict[str, Any]:
    params = _pairs("--param", pairs)
    _refuse_params(params, _RESERVED)
    return params


def _refuse_params(params: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if name in params:
            raise ConfigurationError(f"--param {name}: the evaluation itself sets this field")


def _pairs(option: str, pairs: Sequence[str]) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise ConfigurationError(f"{option} needs NAME=VALUE, got {pair!r}")
        found[name] = json_or_text(value)
    return found
