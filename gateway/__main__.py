"""`python -m gateway` is the `tidegate` command."""

from gateway.cli import main

main()
