"""Runs the command."""

import typer

from policy_store.learn.output_length.command import main

if __name__ == "__main__":
    typer.run(main)
