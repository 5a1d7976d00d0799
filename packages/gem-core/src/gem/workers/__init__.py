"""Function calls in killable worker processes.

`pool` is the caller's side, `process` the worker's. Imports only `gem.errors` of gem.
"""
