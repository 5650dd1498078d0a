"""The compiler: what a pass and a backend are, and how they are put to work."""
