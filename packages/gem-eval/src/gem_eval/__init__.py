"""Evaluates models in GEM environments: `gem eval`.

`tasks` says what is played, `models` what plays. `server`, `client` and `completions` ask a server,
`local`, `trained` and `sampler` a model in this process, `players` has models and policies.
`episode` plays one episode by messages, `native` calls its tools, `tokens` plays as training does,
`runner` all of them into a record that can be continued. `numbers` computes what the record says,
`comparison` compares two and judges one, `tables` shows them, `pages` as HTML, `junit` in XML;
`regrade` scores a record again, `export` writes messages for fine-tuning.
"""

from __future__ import annotations

__version__ = "0.1.0"
