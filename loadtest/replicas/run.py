"""The course of a run: sessions all the while, and one fault after the other.

The rule of this module: it does and notes when; what is made of it is `checks`.
"""

import asyncio
import math
import time
from collections.abc import Callable

from loadtest.replicas.balancer import Balancer
from loadtest.replicas.fleet import ReplicaFleet
from loadtest.replicas.plan import Plan
from loadtest.replicas.records import Course, Fault, Run
from loadtest.replicas.sessions import Crowd

KILLED_GATEWAY = "gateway-1"


async def play(fleet: ReplicaFleet, plan: Plan, said: Callable[[str], None]) -> Run:
    """Play a plan on a fleet that was just started.

    Args:
        fleet: whose parts are stopped and killed.
        plan: what to do.
        said: is told what is being done.
    """
    balancer = Balancer(fleet.urls)
    crowd = Crowd(balancer, plan, model=fleet.model)
    playing = asyncio.create_task(crowd.run())
    try:
        course = await _course(fleet, plan, balancer, said)
        crowd.end()
        said("no session begins any more; those under way are seen to their end")
        await playing
    finally:
        playing.cancel()
        balancer.close()
    return Run(course=course, tried=tuple(crowd.tried), played=tuple(crowd.played), peak_sessions=crowd.peak)


async def _course(fleet: ReplicaFleet, plan: Plan, balancer: Balancer, said: Callable[[str], None]) -> Course:
    said(f"{plan.sessions:,} sessions begin")
    await asyncio.sleep(plan.ramp_s + plan.settle_s)
    steady_from_s = time.monotonic()
    said("steady")
    await asyncio.sleep(plan.steady_s)
    replica = await _lose_gateway(fleet, plan, balancer, said)
    await asyncio.sleep(plan.replica_back_s)
    redis = await _lose_redis(fleet, plan, said)
    await asyncio.sleep(plan.redis_back_s)
    said(f"kill -9 {fleet.victim}")
    began_s = time.monotonic()
    await asyncio.to_thread(fleet.kill_decoder)
    decoder = Fault(name=fleet.victim, began_s=began_s, gone_s=time.monotonic(), back_s=math.inf)
    await asyncio.sleep(plan.decoder_gone_s)
    return Course(steady_from_s=steady_from_s, replica=replica, redis=redis, decoder=decoder)


async def _lose_gateway(fleet: ReplicaFleet, plan: Plan, balancer: Balancer, said: Callable[[str], None]) -> Fault:
    said(f"kill -9 {KILLED_GATEWAY}")
    began_s = time.monotonic()
    await asyncio.to_thread(fleet.kill_gateway, KILLED_GATEWAY)
    gone_s = time.monotonic()
    await asyncio.sleep(plan.replica_gone_s)
    await asyncio.to_thread(fleet.start_gateway, KILLED_GATEWAY)
    balancer.take_in(KILLED_GATEWAY)
    said(f"a fresh {KILLED_GATEWAY} serves")
    return Fault(name=KILLED_GATEWAY, began_s=began_s, gone_s=gone_s, back_s=time.monotonic())


async def _lose_redis(fleet: ReplicaFleet, plan: Plan, said: Callable[[str], None]) -> Fault:
    """It hangs, which is worse than a server that is gone, and then it is gone with all that it knew."""
    said(f"Redis hangs for {plan.redis_gone_s:.0f} s")
    began_s = time.monotonic()
    fleet.redis.hang()
    gone_s = time.monotonic()
    await asyncio.sleep(plan.redis_gone_s)
    await asyncio.to_thread(fleet.redis.kill)
    await asyncio.to_thread(fleet.redis.start)
    said("Redis is back, empty")
    return Fault(name="Redis", began_s=began_s, gone_s=gone_s, back_s=time.monotonic())
