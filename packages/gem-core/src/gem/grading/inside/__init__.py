"""The code of `gem.grading.code` that runs in the sandbox; standard library only, no other gem."""
