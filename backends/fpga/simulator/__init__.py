"""Two simulators of one semantics: a plain one in Python, and a fast one that g++ compiles."""
