"""What the adapters of all trainers share; environments and rollouts import nothing of it.

- `launch`, `platforms`: the native command that an adapter makes of an experiment, and what the
  machine adds to it.
- `settings`: how episodes are played.
- `record`, `recording`: what a run leaves behind, and how an adapter writes it.
- `checkpoints`, `resuming`: the states from which a run that stopped goes on, and whether it may.
- `sampling`, `sglang`: what the samplers of all engines share; a server of SGLang's.
- `stepped`, `lockstep`: an engine that is stepped in this process; requests in batches of all.
- `rows`, `batches`: training rows in a trainer's tensors; optimiser steps and forward passes.
- `doctor`, `preflight`: checks that this installation can run the experiment.
- `seams`: checks that the trainer still has the functions that an adapter replaces or calls.
- `imports`: hooks into modules that are imported later.
- `status_files`: processes of a run tell the launcher that they are done, or why they failed.
- `processes`, `guard`, `ray`: processes of the trainer live and end with it; calls that end when an
  actor dies.
"""
