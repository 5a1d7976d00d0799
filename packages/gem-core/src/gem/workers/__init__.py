"""Functions called in other processes: `pool` is the side of the caller, `process` the other."""
