from dataclasses import field, fields, replace

import pytest

from gateway.core.record import record


@record
class Point:
    x: int
    tags: tuple[str, ...] = field(default=())


def test_a_record_is_compared_and_hashed_by_its_fields() -> None:
    assert Point(x=1) == Point(x=1, tags=())
    assert hash(Point(x=1)) == hash(Point(x=1, tags=()))
    assert Point(x=1) != Point(x=2)
    assert replace(Point(x=1), x=2) == Point(x=2)
    assert [each.name for each in fields(Point)] == ["x", "tags"]


def test_a_record_is_made_by_places_as_by_keywords() -> None:
    assert Point(1, ("a",)) == Point(x=1, tags=("a",))


def test_a_record_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        Point(x=1).y = 2  # type: ignore[attr-defined]
