"""The grader's code that runs in the sandbox; standard library only, no other gem."""
