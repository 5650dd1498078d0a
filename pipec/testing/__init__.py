"""For people who extend pipec: suites that their own tests inherit."""
