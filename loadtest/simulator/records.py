"""A simulated run in the schema that live runs have.

The rule of this module: a simulated client sends on time and hears at once, so its lag is zero; everything else is
what a client would have measured.
"""

from loadtest.client.records import CANCELLED, Record
from loadtest.simulator.dispatch import path_of
from loadtest.simulator.flight import Flight
from loadtest.simulator.host import Run


def to_records(run: Run) -> list[Record]:
    """One record per request, in order of arrival; one still under way at the end counts as cancelled."""
    return [_record(flight, run.until_s) for flight in run.flights]


def _record(flight: Flight, until_s: float) -> Record:
    request, decision = flight.request, flight.decision
    ended_s = until_s if flight.ended_s is None else flight.ended_s
    error = flight.error if flight.ended_s is not None else CANCELLED
    ok = error is None
    return Record(
        request_id=flight.engine_id,
        index=request.index,
        scheduled_s=flight.arrived_s,
        sent_s=flight.arrived_s,
        lag_s=0.0,
        status=200 if ok else None,
        ok=ok,
        error=error,
        input_tokens=request.input_tokens if ok else None,
        output_tokens=request.output_tokens if ok else None,
        cached_tokens=flight.cached_tokens if ok else None,
        ttft_s=flight.ttft_s,
        tpot_s=flight.tpot_s,
        e2e_s=ended_s - flight.arrived_s,
        path=path_of(flight),
        worker=None if decision is None else decision.decode_worker,
        policy=None if decision is None else decision.policy,
        decision_id=None if decision is None else decision.decision_id,
    )
