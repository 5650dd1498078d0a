"""Whether emitted loops can start an iteration as often as they say, from the code alone."""
