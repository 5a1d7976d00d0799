"""Visual tasks of a single turn: a picture, a question, one computed answer."""
