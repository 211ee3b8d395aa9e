"""Data that is made anew on every request.

The rule of this module: a record is frozen to the type checker alone. Python's own frozen dataclasses pay for every
field that they set, which for what each decision makes came to a tenth of its time. Keywords to a class cost as much
again, for they go through a dictionary: where a record is made on every request, its fields are given by their places.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[_T]) -> type[_T]:
    """A slotted dataclass, compared and hashed by its fields; nobody changes one."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
