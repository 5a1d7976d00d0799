"""Function calls in killable worker processes.

`pool` is the caller's side, `process` the worker's. Imports of gem only `gem.errors`,
`gem.admission` and, for a call that takes long, `clock`.
"""
