"""Runs the command."""

import sys

import typer

from policy_store.learn.extras import needed


def _run() -> None:
    try:
        with needed("predicting output lengths", extras="learn"):
            from policy_store.learn.output_length.command import main  # noqa: PLC0415 (an extra)
    except typer.BadParameter as error:
        error.show()
        sys.exit(error.exit_code)
    typer.run(main)


if __name__ == "__main__":
    _run()
