"""Environments of verifiers in GEM: `gem.make("verifiers:NAME")`.

- `env`: the environment; `served`: a taskset with its servers, shared by the environments of it.
- `harness`: the chat loop that plays a task in this process.

`gem_env`, a module of the same distribution, is the other direction.
"""
