"""The code of `gem_sandbox.grading.code` that runs in the sandbox; standard library only, no other gem."""
