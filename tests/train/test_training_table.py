"""The table of an adapter: what it must say, and what is read from it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from machines import eight
from tables import table

from gem.errors import ConfigurationError
from gem.tables import flatten
from gem_train import entries
from gem_train.experiment.estimate import Shaping
from gem_train.experiment.hardware import CPU, Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.settings import Settings
from gem_train.table import (
    Computed,
    Copied,
    Departs,
    Elsewhere,
    Fixed,
    Ignored,
    Parity,
    Refused,
    Run,
    Table,
    below,
    key_of,
    keys,
    namesakes,
)

SPEC: dict[str, Any] = {
    "name": "guess",
    "env": {"id": "game:GuessTheNumber-v0-easy"},
    "policy": {"model": "m", "prompt_tokens": 64, "response_tokens": 256, "turn_tokens": 8},
    "algorithm": {"advantage": "rebn"},
    "optimizer": {"lr": 1e-3},
    "training": {"iterations": 3, "tasks": 2, "group_size": 4},
}
EVAL = {"id": "game:GuessTheNumber-v0", "name": "a", "every": 2}


def run(hardware: Hardware | None = None, trainer: str = "x", **tables: Any) -> Run:
    changed = {
        name: {**SPEC.get(name, {}), **value} if isinstance(value, dict) else value
        for name, value in tables.items()
    }
    spec = RunSpec.from_mapping({**SPEC, **changed})
    return table(trainer).run(spec, Path("/run"), hardware or Hardware())


def said(made: Table, of: Run) -> dict[str, tuple[str, str]]:
    return {each.name: (each.status, each.how) for each in made.parity(of)}


# What a table must say


def test_every_field_of_spec_and_hardware_is_a_key() -> None:
    spec = RunSpec.from_mapping(
        SPEC
        | {
            "judge": {"main": {"url": "http://x/v1", "model": "m", "allow_uncalibrated": True}},
            "env": [
                {**SPEC["env"], "params": {"judge": "main"}, "schedule": [{"iteration": 1}]},
                {**SPEC["env"], "name": "b"},
            ],
            "eval": [EVAL],
            "policy": {**SPEC["policy"], "template_kwargs": {"b": {"c": [1]}}},
            "training": {**SPEC["training"], "info_metrics": ["moves"]},
        }
    )
    full = {**spec.to_mapping(), "hardware": {**eight().to_mapping(), "native": {}}}
    leaves = {key_of(name) for name in flatten(full)}
    free = {"eval.params", "env.schedule.params"}  # empty here
    assert leaves | free == set(keys())
    with pytest.raises(KeyError):
        key_of("optimizer.nesterov")


def test_a_key_without_an_entry_is_named_with_the_adapter() -> None:
    some = dict.fromkeys(keys(), Elsewhere("--all"))
    del some["optimizer.eps"]
    with pytest.raises(ConfigurationError, match=r"optimizer.eps: .* adapter 'mine' has no entry"):
        Table("mine", some)


def test_a_new_key_stops_a_table_that_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    old = dict.fromkeys(keys(), Elsewhere("--all"))
    monkeypatch.setattr("gem_train.table.keys", lambda: (*keys(), "optimizer.nesterov"))
    with pytest.raises(ConfigurationError, match=r"optimizer.nesterov: .* 'mine' has no entry"):
        Table("mine", old)


def test_an_entry_of_no_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"optimizer.nesterov: .* but no key"):
        table("mine", {"optimizer.nesterov": Copied("w")})


@pytest.mark.parametrize("ways", [(), (Copied("a"), Fixed(0, "so it is"))])
def test_a_table_says_once_how_a_value_gets_to_the_trainer(ways: tuple[Any, ...]) -> None:
    beside = Departs(lambda run, value: True, "otherwise")
    with pytest.raises(ConfigurationError, match=rf"seed: .* it says so {len(ways)} times"):
        table("mine", {"seed": (*ways, beside)})


def test_a_key_of_the_experiment_may_not_be_ignored() -> None:
    with pytest.raises(ConfigurationError, match="optimizer.eps: .* 'mine' may not ignore it"):
        table("mine", {"optimizer.eps": Ignored()})


@pytest.mark.parametrize(
    "field", ["value", "run.nothing", "run.spec.policy.nothing", "run.spec.policy.model.nothing"]
)
def test_a_text_that_names_what_a_run_does_not_have_stops_the_table(field: str) -> None:
    for beside in (Refused, Departs):
        entry = (Copied("seed"), beside(lambda run, value: False, f"only {{{field}}}"))
        with pytest.raises(ConfigurationError, match=rf"seed: .* a run has no {field}"):
            table("mine", {"seed": entry})


# The command


def test_settings_are_copied_and_computed() -> None:
    made = table(
        "x",
        {
            "policy.model": Copied("model.path"),
            "policy.turns": Copied("+gem.turns"),
            "policy.template_kwargs": Copied("gem.kwargs"),
            "algorithm.clip": Copied(("clip_low", "+clip_high")),
            "optimizer.beta1": Computed(lambda run: {"betas": run.spec.optimizer.betas}, "betas"),
            "optimizer.beta2": Computed(lambda run: {"betas": run.spec.optimizer.betas}, "betas"),
            "hardware.gpus_per_node": Copied("gpus"),
            "hardware.logger": Copied("log"),
        },
    )
    settings = {
        "model.path": "m",
        "clip_low": 0.2,
        "+clip_high": 0.2,
        "betas": [0.9, 0.999],
        "gpus": 1,
    }
    assert made.settings(run()) == settings
    more = run(eight(), policy={"turns": 5, "template_kwargs": {"a": {"b": [1]}}})
    assert made.settings(more) == settings | {
        "+gem.turns": 5,
        "gpus": 8,
        "log": "wandb",
        "gem.kwargs": {"a": {"b": [1]}},
    }
    names = said(made, more)
    assert names["algorithm.clip"] == ("matched", "clip_low, clip_high")
    assert names["policy.turns"] == ("matched", "gem.turns")
    assert names["policy.template_kwargs.a.b.0"] == ("matched", "gem.kwargs")


def test_defaults_of_the_hardware_that_depend_on_the_run_are_copied_as_they_are() -> None:
    learned = ("engine.engines", "learner.pass_tokens", "learner.attention")
    made = table("x", {f"hardware.{name}": Copied(name) for name in learned})
    assert made.settings(run(eight(engine={"tensor_parallel": 2}))) == {
        "engine.engines": 4,
        "learner.pass_tokens": 4096,
        "learner.attention": "sdpa",
    }
    fused = replace(made, fused=lambda spec: True)
    assert fused.run(run().spec, Path("/run"), Hardware()).pass_tokens == 16_384


def test_settings_of_evaluations_are_given_only_where_there_are_some() -> None:
    every = Computed(lambda run: {"every": run.spec.eval_every}, "every")
    made = table("x", {**entries.evaluations(every)})
    assert made.settings(run()) == {}
    assert made.settings(run(eval=[EVAL])) == {"every": 2}


def test_names_are_given_as_one_text_and_left_out_where_there_are_none() -> None:
    made = table("x", {"training.info_metrics": Copied("info")})
    asked = {"training": {"info_metrics": ["moves", "won"]}}
    assert made.settings(run(**asked)) == {"info": "moves won"}
    assert made.settings(run()) == {}
    with pytest.raises(ConfigurationError, match="training.info_metrics: .* twice"):
        run(training={"info_metrics": ["moves", "moves"]})


def test_two_entries_may_not_give_a_setting_different_values() -> None:
    made = table("x", {"seed": Copied("a"), "name": Copied("a")})
    with pytest.raises(ConfigurationError, match="seed: .* sets a to 0, and another .* 'guess'"):
        made.settings(run())


def test_settings_of_the_same_name_are_found_but_for_seed_and_environment() -> None:
    found = namesakes(Settings, "gem.{}")
    assert found == {
        f"{part}.{name}": Copied(f"gem.{name}")
        for part, names in {
            "policy": ("turn_tokens", "turns", "context", "system_prompt", "template_kwargs"),
            "algorithm": tuple(Shaping().shaping),
            "training": ("max_failed_fraction", "info_metrics"),
            "hardware": ("executor",),
        }.items()
        for name in names
    } | {"policy.thinking": Copied("gem.thinking")}
    assert {"seed", "retries"} <= {each.name for each in fields(Settings)}


def test_settings_of_a_place_are_those_with_its_prefix() -> None:
    assert below({"gem.a": 1, "a": 2, "gem.b.c": 3}, "gem.") == {"a": 1, "b.c": 3}


def test_a_native_setting_may_not_contradict_the_experiment() -> None:
    made, given = table("x"), eight({"x": {"new": 1}})
    assert made.with_native({"+lr": 0.5}, run(given)) == {"+lr": 0.5, "new": 1}
    assert table("y").with_native({"lr": 0.5}, run(given, "y")) == {"lr": 0.5}
    for name in ("lr", "+lr"):
        with pytest.raises(ConfigurationError, match=r"native\.x\..*lr: .*decides it \(0.5\)"):
            made.with_native({"+lr": 0.5}, run(eight({"x": {name: 1}})))


@pytest.mark.parametrize(
    ("settings", "native"),
    [
        ({"+optim.lr": 0.5, "n": 1}, {"optim": {"lr": 1.0}}),
        ({"actor.optim.lr": 0.5}, {"actor": {"optim": {"eps": 1e-5}}}),  # trainers may replace it
        ({"actor.optim.lr": 0.5}, {"+actor.optim": None}),
        ({"args": {"a": 1, "b": {"c": 2}}}, {"args.a": 2}),
        ({"args": {"a": 1, "b": {"c": 2}}}, {"args.b": {"d": 3}}),
    ],
    ids=str,
)
def test_a_native_table_may_not_contradict_it_either(
    settings: dict[str, Any], native: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match=r"native\.x\.\S+: the experiment or the hardware"):
        table("x").with_native(settings, run(eight({"x": native})))


def test_a_native_table_of_its_own_is_given() -> None:
    settings = {"optim.lr": 0.5, "args": {"a": 1}, "kept": {}}
    native = {"optim.more": {"eps": 1e-5}, "args.b": 2, "optimizer": {"lr": 1.0}, "kept.a": 1}
    made = table("x").with_native(settings, run(eight({"x": native})))
    assert made == settings | native


# Refusals


def test_a_refusal_names_key_reason_and_value() -> None:
    made = table(
        "x",
        {
            "algorithm.minibatches": (Copied("n"), entries.WHOLE_MINIBATCHES),
            "policy.lora_rank": Fixed(0, "all weights are trained"),
            "hardware.nodes": Fixed(1, "torchrun is started on each by hand"),
        },
    )
    made.refuse(run(algorithm={"minibatches": 4}))
    with pytest.raises(ConfigurationError) as error:
        made.refuse(run(algorithm={"minibatches": 3}))
    assert str(error.value) == (
        "algorithm.minibatches: 8 episodes (training.tasks * training.group_size) do not divide "
        "so, got 3"
    )
    with pytest.raises(
        ConfigurationError,
        match=r"^policy.lora_rank: all weights are trained; set it to 0, got 8$",
    ):
        made.refuse(run(policy={"lora_rank": 8}))
    with pytest.raises(ConfigurationError, match=r"^hardware.nodes: .*; set it to 1, got 2$"):
        made.refuse(run(Hardware.from_mapping({"nodes": 2})))


def test_a_change_of_parameters_that_waits_for_success_is_refused_by_its_place() -> None:
    made = table("x", {**entries.tasks(Elsewhere("a file"))})
    env = SPEC["env"] | {"schedule": [{"success": 0.5, "params": {"max_turns": 3}}]}
    with pytest.raises(
        ConfigurationError, match=r"^env.schedule.0.success: .* say `iteration` .*, got 0.5$"
    ):
        made.refuse(run(env=env))
    made.refuse(run(env=SPEC["env"] | {"schedule": [{"iteration": 1, "params": {"x": 3}}]}))


def test_engines_that_share_all_gpus_are_as_many_as_these_allow() -> None:
    made = table("x", {**entries.SHARED_GPUS})
    made.refuse(run(eight(engine={"engines": 8})))
    with pytest.raises(ConfigurationError, match="share all GPUs, which makes 8 engines, got 4"):
        made.refuse(run(eight(engine={"engines": 4})))


def test_an_optimiser_step_s_episodes_divide_among_ranks() -> None:
    made = table("x", {"algorithm.minibatches": (Copied("n"), entries.WHOLE_STEPS)})
    made.refuse(run(eight()))
    with pytest.raises(ConfigurationError, match="step's 4 episodes .* 8 ranks, got 2"):
        made.refuse(run(eight(), algorithm={"minibatches": 2}))


def test_one_row_and_whole_rows_are_asked_for_by_their_keys() -> None:
    rows = entries.one_row("one row an episode")
    shown = {key: (Copied(key), rows[key]) for key in rows}
    with pytest.raises(ConfigurationError, match="policy.context: .*only 'chat'"):
        table("x", shown).refuse(run(policy={"context": "concat"}))
    with pytest.raises(ConfigurationError, match="policy.thinking: .*choose 'keep'"):
        table("x", shown).refuse(run(policy={"thinking": "drop"}))
    whole = table("x", {"algorithm.minibatches": (Copied("n"), *entries.whole_rows("X"))})
    whole.refuse(run(policy={"context": "concat"}))
    with pytest.raises(ConfigurationError, match="X divides rows, not episodes; .*'concat'"):
        whole.refuse(run(policy={"context": "concat"}, algorithm={"minibatches": 2}))
    kuhn = {"id": "multi:KuhnPoker-v0", "params": {"seat": "all"}}
    with pytest.raises(ConfigurationError, match="set it to 1 for seat=all"):
        whole.refuse(run(env=kuhn, algorithm={"minibatches": 2}))


# Parity


def test_a_departure_says_where_it_applies() -> None:
    made = table(
        "x",
        {
            "seed": (Copied("seed"), entries.seeds()),
            "algorithm.value_clip": (Copied("clip"), entries.VALUES_ON_TOKENS),
            "optimizer.weight_decay": (Copied("wd"), entries.NO_DECAY),
            "training.precision": (
                Copied("dtype"),
                entries.computed_in_bf16("bf16 weights"),
                *entries.bf16_only("it trains in bf16"),
            ),
            **entries.evaluations(Elsewhere("a file")),
        },
    )
    made = replace(made, others=(entries.critic_head,))
    greedy: dict[str, Any] = {"sampling": {"top_k": 1}}

    def departing(*args: Any, **tables: Any) -> dict[str, tuple[str, str]]:
        return {k: v for k, v in said(made, run(*args, **tables)).items() if v[0] != "matched"}

    assert departing(CPU, **greedy) == {
        "training.precision": ("emulated", "GEM_CPU_DTYPE of gem-cpu")
    }
    assert departing(**greedy) == {"training.precision": ("unmatched", "it trains in bf16")}
    full = departing(
        **greedy,
        algorithm={"advantage": "gae"},
        optimizer={"weight_decay": 0.1},
        training={"precision": "bf16"},
        eval=[EVAL, {**EVAL, "name": "b", "every": 4}],
    )
    assert full.pop("training.precision") == (
        "emulated",
        "bf16 weights (the reference: autocast)",
    )
    assert full.pop("critic's initial head")[0] == "unmatched"
    assert full.pop("eval.1.every") == (
        "emulated",
        "everything is evaluated at once: every 2 iterations",
    )
    assert set(full) == {"algorithm.value_clip", "optimizer.weight_decay"}
    assert departing(CPU, training={"precision": "bf16"}) == {
        "seed": ("emulated", entries.SEED_PER_TURN),
        "training.precision": ("emulated", "bf16 weights (the reference: autocast)"),
    }


def test_an_evaluation_that_is_never_made_is_told() -> None:
    missed = entries.evaluations(
        Elsewhere("a file"), "not at the end", when=lambda spec: spec.training.iterations == 3
    )
    found = said(table("x", {**missed}), run(eval=[EVAL]))["eval.0.every"]
    assert found[0] == "emulated" and found[1].endswith("2 iterations, but not at the end")
    four = run(eval=[EVAL], training={"iterations": 4})
    assert said(table("x", {**missed}), four)["eval.0.every"][0] == "matched"


def test_what_has_no_effect_is_unmatched_and_what_is_given_as_it_is_native() -> None:
    ignored = {f"hardware.{name}": Ignored() for name in ("learner.offload", "nodes")}
    made = table("x", {**ignored, "hardware.engine.tensor_parallel": Fixed(1, "whole engines")})
    found = said(made, run(eight({"x": {"mine": [1]}, "y": {"other": 2}})))
    assert found["mine"] == ("native", "[1]")
    assert found["hardware.learner.offload"] == ("unmatched", "without effect in this trainer")
    assert not {"hardware.nodes", "hardware.engine.tensor_parallel", "other"} & found.keys()


def test_fp32_weights_are_matched_unless_a_native_setting_changes_them() -> None:
    key = "fsdp.model_dtype"
    say = entries.optimizer_weights("in the shards", key)

    def weights(native: dict[str, Any]) -> Parity:
        [found] = say(run(Hardware(native={"x": native})))
        assert found.name == entries.OPTIMIZER_WEIGHTS
        return found

    tables = {key: {"dtype": "float32"}}, {key: {"attention": "sdpa"}}
    for native in ({}, {key: "fp32"}, {key: "torch.float32"}, {"other": "bf16"}, *tables):
        found = weights(native)
        assert (found.status, found.how) == ("matched", "fp32: in the shards")
    for native in (
        *({key: "bfloat16"}, {f"+{key}": "bf16"}, {key: None}),
        {key: {"dtype": "bfloat16"}},
    ):
        found = weights(native)
        assert found.status == "unmatched"
        assert found.how.endswith("updates below its rounding are lost")


def test_seats_that_the_policy_plays_are_told() -> None:
    made = table("x", {**entries.tasks(Elsewhere("a file"))})
    for params, begin in (({"seat": "all"}, "all seats"), ({"opponent": "self"}, "one seat")):
        [name] = params
        env = {"id": "multi:Nim-v0", "params": params}
        assert said(made, run(env=env))[f"env.params.{name}"][1].startswith(begin)


@dataclass(frozen=True)
class _Own(Settings):
    clip: float = 0.1


def test_a_subclass_s_settings_are_namesakes_too() -> None:
    assert namesakes(_Own)["algorithm.clip"] == Copied("clip")
