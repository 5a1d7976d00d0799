"""Pictures: boards of games, visual tasks `image:<Name>-<version>`, and `drawing`, which draws."""
