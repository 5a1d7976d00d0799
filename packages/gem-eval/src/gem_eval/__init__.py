"""Evaluates models in GEM environments: `gem eval`.

`tasks` says what is played, `models` what plays: `server`, `client`, `completions` and `local` are
ways to ask a model, `players` are models and policies, `tokens` plays as training does,
`episode` plays one episode, `runner` all of them into a record that can be continued, `numbers`
computes what the record says, `comparison` compares two and judges one, `tables` shows them,
`pages` as HTML, `junit` in XML; `regrade` scores a record again.
"""

from __future__ import annotations

__version__ = "0.1.0"
