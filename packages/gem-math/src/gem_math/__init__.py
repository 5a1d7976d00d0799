"""Math problems as environments, and the grader of their answers.

- `grading`: is an answer right? `cleaning` removes what means nothing, `notation` and `relations`
  parse an answer into a `tree`, `compare` compares two trees by their `values`, `forms` finds what
  is not worked out, and `phrases` compares words. What these cannot read goes to math-verify
  (`fallback`), which runs in a worker process (`symbolic`). `vocabulary` has the words they know.
- `env`: the environments; `ids`: their ids.
"""
