"""Stand-in for `courier.handlers.python`."""
