"""Where environments run: in threads, other processes, on a Ray cluster or behind a server."""
