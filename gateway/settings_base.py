"""What every section of the settings is made of.

The rule of this module: a section is frozen, and refuses what it does not know.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0)]
Ratio = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A frozen part of the tree that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
