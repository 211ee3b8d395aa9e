"""What only an extra installs, as `pip install '.[learn]'` does.

The rule of this module: a library that an extra brings is told with the extra; any other import error is a fault of
the program and stays one.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

LIBRARIES = {"joblib": "joblib", "scipy": "SciPy", "sklearn": "scikit-learn", "xgboost": "XGBoost"}
"""Names by module."""


@contextmanager
def needed(for_what: str, *, extras: str) -> Iterator[None]:
    """Imports inside of it may miss what the extras, separated by commas, install.

    Raises:
        typer.BadParameter: one of `LIBRARIES` is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = LIBRARIES.get((error.name or "").partition(".")[0])
        if library is None:
            raise
        raise typer.BadParameter(f"{for_what} needs {library}: pip install '.[{extras}]'") from error
