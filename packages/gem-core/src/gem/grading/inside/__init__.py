"""What runs in the sandbox to grade code: standard library only, it sees no other part of gem."""
