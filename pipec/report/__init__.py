"""Reports: what a plan says, for people."""
