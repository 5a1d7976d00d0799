"""TAU-bench: customer service with tools and a user, as the environments `tau:<Name>-<version>`."""
