"""`python -m loadtest.plane`."""

from loadtest.plane.cli import main

if __name__ == "__main__":
    main()
