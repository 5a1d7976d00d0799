"""What the adapters of all trainers share; environments and rollouts import nothing of it.

- `experiment`: what is learned, and nothing about a trainer: RunSpec, hardware, metrics, losses.
- `table`, `entries`, `pairs`: how an adapter realises each setting, and which work together.
- `launch`, `platforms`: the native command that an adapter makes of an experiment, and what the
  machine adds to it.
- `settings`: how episodes are played.
- `record`, `recording`: what a run leaves behind, and how an adapter writes it.
- `checkpoints`, `resuming`: the states from which a run that stopped goes on, and whether it may.
- `packed`: episodes as bytes, on their way between processes.
- `sampling`: what the samplers of all engines share.
- `rows`, `batches`: training rows in a trainer's tensors; optimiser steps and forward passes.
- `doctor`, `preflight`: checks that this installation can run the experiment.
- `seams`: checks that the trainer still has the functions that an adapter replaces or calls.
- `imports`: hooks into modules that are imported later.
- `processes`, `guard`, `ray`: processes of the trainer live and end with it; calls that end when an
  actor dies.
- `testing`: golden trajectories, and the tests of conformance level L0.
"""
