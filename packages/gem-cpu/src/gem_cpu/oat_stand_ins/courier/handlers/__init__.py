"""Stand-in for `courier.handlers`."""
