"""``python -m pipec`` is ``pipec``."""

from pipec.cli.main import main

if __name__ == "__main__":
    main()
