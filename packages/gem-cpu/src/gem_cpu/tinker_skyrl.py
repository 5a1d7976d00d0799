"""SkyRL's Tinker server on a CPU, for tinker SDKs newer than the one it is pinned to.

    python -m gem_cpu.tinker_skyrl --base-model DIR --port 8000 ...   the flags of skyrl.tinker.api

Runs in the environment `tinker-server` only; `gem_cpu.tinker_server` starts it. SDK, cookbook and
adapter are unchanged. This module adds what skyrl 0.4.0 lacks, by patching skyrl's modules:

- the engine is started with this Python instead of a `uv run` command derived from the parent's;
- answers to `asample` carry `sample_sequence_ids`, which tinker >= 0.30 requires;
- `POST /api/v1/sessions/{id}/finish`, which tinker 0.38 calls at the end, frees the adapters;
- `load_weights` creates the model that it loads into, which tinker 0.38 expects;
- `AdamParams.grad_clip_norm`, which tinker 0.38 sends and skyrl would silently ignore;
- lengths are padded to multiples of `GEM_TINKER_BUCKET` tokens: a small model's forward pass is
  much cheaper than compiling another shape;
- on Python 3.11 pydantic needs `typing_extensions.TypedDict` (skyrl declares 3.12).
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import typing
import uuid
from datetime import datetime, timezone
from typing import Annotated, Any

import typing_extensions

from gem_cpu import announce

SUPPORTED_SKYRL = "0.4.0"
BUCKET = "GEM_TINKER_BUCKET"
_ENGINE = "--engine"


def prepare() -> None:
    """Apply the patches that API server and engine both need; call before skyrl is imported.

    Raises:
        RuntimeError: The installed skyrl is not `SUPPORTED_SKYRL`.
    """
    from importlib.metadata import version

    found = version("skyrl")
    if found != SUPPORTED_SKYRL:
        raise RuntimeError(f"these repairs are for skyrl {SUPPORTED_SKYRL}; {found} is installed")
    if sys.version_info < (3, 12):
        typing.TypedDict = typing_extensions.TypedDict
    from skyrl.tinker import types

    # Lets extra fields such as grad_clip_norm pass from the API server to the engine.
    types.AdamParams.model_config["extra"] = "allow"
    for model in (types.AdamParams, types.OptimStepInput):
        model.model_rebuild(force=True)


def serve(argv: list[str]) -> None:
    """Run the API server, which starts the engine."""
    prepare()
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

    def engine_command(parent: list[str], config: Any) -> list[str]:
        return [sys.executable, "-m", "gem_cpu.tinker_skyrl", _ENGINE, *config_to_argv(config)]

    api._build_uv_run_cmd_engine = engine_command
    _add_routes(api)
    announce(
        "SkyRL's Tinker server with its JAX backend on CPU",
        "the hosted service, GPU backends, bf16 samplers that differ from the trainer",
    )
    parser = argparse.ArgumentParser(prog="python -m gem_cpu.tinker_skyrl")
    add_model(parser, EngineConfig)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args(argv)
    fields = {k: v for k, v in vars(args).items() if k in EngineConfig.model_fields}
    api.app.state.engine_config = EngineConfig.model_validate(fields)
    uvicorn.run(api.app, host=args.host, port=args.port, log_level="warning")


def _add_routes(api: Any) -> None:
    """Replace three routes and add one."""
    from fastapi import Depends, Request
    from pydantic import create_model

    app = api.app
    replaced = ("/api/v1/asample", "/api/v1/optim_step", "/api/v1/load_weights")
    app.router.routes[:] = [
        r for r in app.router.routes if getattr(r, "path", None) not in replaced
    ]
    answer: Any = create_model(
        "SampleFuture", __base__=api.FutureResponse, sample_sequence_ids=(list[str], ...)
    )

    class ClippingAdam(api.AdamParams):  # type: ignore[misc]
        grad_clip_norm: float = 0.0

        def to_types(self) -> Any:
            params = super().to_types().model_dump() | {"grad_clip_norm": self.grad_clip_norm}
            return api.types.AdamParams.model_validate(params)

    async def asample(request: Any, req: Any, session: Any) -> Any:
        promise = await api.asample(request, req, session)
        ids = [uuid.uuid4().hex for _ in range(request.num_samples)]
        return answer(**promise.model_dump(), sample_sequence_ids=ids)

    async def optim_step(req: Any, session: Any) -> Any:
        body = await req.json()
        request = api.OptimStepRequest.model_validate(body)
        adam = ClippingAdam.model_validate(body["adam_params"])
        return await api.optim_step(request.model_copy(update={"adam_params": adam}), session)

    async def load_weights(req: Any, session: Any) -> Any:
        body = await req.json()
        path, optimizer, model_id = body["path"], body["optimizer"], body.get("model_id")
        if model_id is None:
            model_id = f"{body['session_id']}:train:{body['model_seq_id']}"
            source = await api.get_model(session, api.types.TinkerPath.parse(path).primary_id)
            lora = api.types.LoraConfig.model_validate(source.lora_config)
            promise = await api.create_future(
                session=session,
                request_type=api.types.RequestType.CREATE_MODEL,
                model_id=model_id,
                request_data=api.types.CreateModelInput(lora_config=lora),
            )
            session.add(
                api.ModelDB(
                    model_id=model_id,
                    base_model=source.base_model,
                    lora_config=source.lora_config,
                    status="created",
                    request_id=promise,
                    session_id=body["session_id"],
                )
            )
            await session.commit()
        request = api.LoadWeightsRequest(model_id=model_id, path=path, optimizer=optimizer)
        return await api.load_weights(request, req, session)

    async def finish(session_id: str, session: Any) -> dict[str, str]:
        # An old heartbeat makes the engine unload the session's models.
        found = await session.get(api.SessionDB, session_id)
        if found is not None:
            found.last_heartbeat_at = datetime(1970, 1, 1, tzinfo=timezone.utc)
            session.add(found)
            await session.commit()
        return {}

    # FastAPI reads annotations; set them here, as skyrl cannot be imported at module level.
    database = Annotated[Any, Depends(api.get_session)]
    asample.__annotations__ |= {"request": api.SampleRequest, "req": Request, "session": database}
    for route in (optim_step, load_weights):
        route.__annotations__ |= {"req": Request, "session": database}
    finish.__annotations__ |= {"session_id": str, "session": database, "return": dict[str, str]}
    app.post("/api/v1/asample", response_model=answer)(asample)
    app.post("/api/v1/optim_step", response_model=api.FutureResponse)(optim_step)
    app.post("/api/v1/load_weights", response_model=api.FutureResponse)(load_weights)
    app.post("/api/v1/sessions/{session_id}/finish")(finish)


def run_engine(argv: list[str]) -> None:
    """Run the engine, the process that holds the model."""
    prepare()
    _pad_to_buckets()
    _clip_gradients()
    sys.argv = ["skyrl.tinker.engine", *argv]
    runpy.run_module("skyrl.tinker.engine", run_name="__main__")


def _pad_to_buckets() -> None:
    bucket = int(os.environ.get(BUCKET, "0"))
    if bucket:
        from skyrl.tx.utils import models

        models.round_up_seq_len = lambda length: -(-length // bucket) * bucket


def _clip_gradients() -> None:
    """Add global-norm clipping before Adam, with the limit as a hyperparameter."""
    import jax.numpy as jnp
    import optax
    from skyrl.backends import jax as backend

    def clipped_adamw(
        learning_rate: float,
        grad_clip_norm: float = jnp.inf,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 1e-4,
    ) -> Any:
        # skyrl's gradients are 0 for all other adapters, so the global norm is this adapter's.
        return optax.chain(
            optax.clip_by_global_norm(grad_clip_norm),
            optax.adamw(learning_rate, b1, b2, eps, weight_decay=weight_decay),
        )

    class Optax:
        """The part of optax that skyrl uses, with clipping."""

        adamw = staticmethod(clipped_adamw)
        inject_hyperparams = staticmethod(optax.inject_hyperparams)
        global_norm = staticmethod(optax.global_norm)

    backend.optax = Optax
    original = backend.JaxBackendImpl.optim_step

    def optim_step(self: Any, model_id: str, request_data: Any) -> Any:
        limit = request_data.adam_params.model_extra.get("grad_clip_norm", 0.0)
        hyperparams = self.optimizers[model_id].opt_state.hyperparams
        hyperparams["grad_clip_norm"][...] = limit if limit > 0 else jnp.inf
        return original(self, model_id, request_data)

    backend.JaxBackendImpl.optim_step = optim_step


def main(argv: list[str]) -> None:
    """Run the engine if the first argument is `--engine`, else the API server."""
    if argv[:1] == [_ENGINE]:
        run_engine(argv[1:])
    else:
        serve(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
