"""The garbage collector, out of the way of a run.

The rule of this module: a run makes no cycles that outlive it, and nearly all that it makes lives to its end; looking
through all of that again and again would take a tenth of its time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Count references only, for so long."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            # What was made is old by now: without this the next allocation would look through all of it.
            gc.freeze()
            gc.unfreeze()
            gc.enable()
