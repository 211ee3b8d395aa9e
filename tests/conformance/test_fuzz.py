"""A few hundred of the inputs of `tests.conformance.fuzz`, of which a failing one is made as small as it gets."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.fuzz import check_input
from tests.conformance.planes import Plane

pytestmark = pytest.mark.asyncio(loop_scope="session")


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(rng=st.randoms(use_true_random=False))
async def test_whatever_comes_nothing_breaks_hangs_or_gets_mixed_up(any_plane: Plane, rng: Random) -> None:
    await check_input(any_plane, rng)


async def test_many_more_inputs(any_plane: Plane) -> None:
    for number in range(150):
        await check_input(any_plane, Random(f"suite-{number}"))
