"""An experiment, and the mathematics that defines it, without any trainer.

- `runspec`: the learning problem; `hardware`: the machine it runs on.
- `tasksets`: its tasks as the rows of a dataset.
- `estimate`, `losses`: advantages of a batch by turn; losses of tokens and turns.

Imports nothing of `gem.training`, whose modules give an experiment to a trainer.
"""
