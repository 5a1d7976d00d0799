"""The code that runs inside the bubblewrap sandbox.

Imports the standard library and this package only: no other part of gem exists in there. The
processes: servers (`server`) fork spares (`spare`), each of which becomes a program (`program`) or
the keeper of a session (`session`).
"""
