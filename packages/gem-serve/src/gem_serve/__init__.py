"""Environments over HTTP and WebSocket, in the protocol of OpenEnv: the server and its clients.

- `messages`: what both sides write into messages, and the schemas of OpenEnv.
- `offers`: what clients may use, and how they are refused; `sessions`: the environments that they
  use, and for how long; `batches`: many environments on one connection. These know no network.
- `executed`: environments that run in an executor instead of the server's threads.
- `metrics`: counts what sessions do, as text for Prometheus.
- `app`: the routes, of Starlette; `cli` runs it (`python -m gem serve`).
- `connection`: a client's WebSocket; `remote` and `openenv` are environments on it, made by
  `gem.make` from `remote:http://...` and `openenv:http://...`.
- `inverted`: a local chat server whose model is GEM's policy; `conversation`: its requests as
  observations. `agent` makes an environment of any program that talks to it (`agent:<command>`);
  `asked` is what such environments have in common.

Third-party packages (extra `serve`) are imported where a server or a connection is made.
"""
