"""What runs inside the bubblewrap sandbox: standard library only, it sees no other part of gem."""
