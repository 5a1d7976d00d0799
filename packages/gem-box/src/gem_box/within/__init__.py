"""What runs beside and inside a box; it imports the standard library and `gem_sandbox.inside` only.

`keeper` makes the namespaces and the file system, `first` is the first process inside, `kernel` has
the system calls, `messages` what they say to each other.
"""
