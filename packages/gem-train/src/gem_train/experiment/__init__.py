"""An experiment, and the mathematics that defines it, without any trainer.

- `runspec`: the learning problem; `hardware`: the machine it runs on.
- `mixtures`, `tasksets`: its tasks, of one or several environments; as the rows of a dataset.
- `estimate`, `losses`: advantages of a batch by turn; losses of tokens and turns.
- `metrics`: what is measured of a batch, under the same names everywhere.

Imports nothing of `gem_train`, whose modules give an experiment to a trainer.
"""
