"""Cost tables that are wrong by a known share.

The rule of this module: only what the policy believes is scaled; the engines run as they are.
"""

from dataclasses import fields, replace

from gateway.core.engine_costs import EngineCosts
from gateway.core.forecast import FleetCosts
from gateway.core.step_cost import CostTable, Curve


def mispriced(costs: FleetCosts, prefill: float, decode: float) -> FleetCosts:
    """Each pool's steps at so many times their price."""
    return FleetCosts(prefill=_engine(costs.prefill, prefill), decode=_engine(costs.decode, decode))


def _engine(costs: EngineCosts, factor: float) -> EngineCosts:
    return replace(costs, table=_table(costs.table, factor))


def _table(table: CostTable, factor: float) -> CostTable:
    attention = table.attention
    terms = {each.name: getattr(attention, each.name) * factor for each in fields(attention)}
    return replace(
        table,
        step_overhead_s=table.step_overhead_s * factor,
        sequence_overhead_s=table.sequence_overhead_s * factor,
        tokens=_curve(table.tokens, factor),
        sequences=_curve(table.sequences, factor),
        attention=replace(attention, **terms),
    )


def _curve(curve: Curve, factor: float) -> Curve:
    return Curve(curve.xs, tuple(value * factor for value in curve.ys))
