"""Where the work was done, by the engines' own counters, and whether the gateway counted what its client saw.

The rule of this module: a header that says "remote" proves nothing; the decode worker's counters do.
"""

from gateway.telemetry.decisions import read_decision_log
from tests.engines.checklist import same
from tests.engines.engine_client import CHAT, prompt_fields, story, until
from tests.engines.engine_pair import Worker
from tests.engines.pair_lab import KV_BLOCK_TOKENS, ROUTES, SAMPLED, Check, Lab, counts, settled

PROMPT_TOKENS = "vllm:prompt_tokens_total"
BY_SOURCE = "vllm:prompt_tokens_by_source_total"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
LOCAL_HITS = "vllm:prefix_cache_hits_total"


def remote_load(lab: Lab) -> str:
    """D loads the prompt's KV from P and computes none of it (D's own metrics)"""
    return "external_kv_transfer: " + ", ".join(_one_transfer(lab, route) for route in ROUTES)


def _one_transfer(lab: Lab, route: str) -> str:
    decode = lab.pair.decode
    hits, external, local = settled(lambda: _sources(lab, decode))
    reply = lab.ask(route, prompt_fields(route, story()))
    prompt_tokens, _ = counts(reply)
    least = prompt_tokens - KV_BLOCK_TOKENS
    until(lambda: _sources(lab, decode)[1] - external >= least, "D counted the transfer")
    after = settled(lambda: _sources(lab, decode))
    assert after[0] - hits >= least, f"{EXTERNAL_HITS} grew by {after[0] - hits:.0f} of {prompt_tokens}"
    assert after[2] - local <= 1, f"D computed {after[2] - local:.0f} prompt tokens itself"
    return f"{after[1] - external:.0f} of {prompt_tokens} tokens (local_compute {after[2] - local:.0f})"


def prefill_cache(lab: Lab) -> str:
    """P finds a prompt that it has seen in its cache, and the gateway counts P's cached tokens"""
    fields = prompt_fields(CHAT, story())
    assert lab.direct(lab.pair.prefill, CHAT, fields).is_whole
    before = settled(lambda: (lab.count(lab.pair.prefill, LOCAL_HITS),))[0]
    counted = lab.gateway.metric("tidegate_tokens_total", type="cached")
    reply = lab.ask(CHAT, fields)
    least = counts(reply)[0] - KV_BLOCK_TOKENS
    until(lambda: lab.count(lab.pair.prefill, LOCAL_HITS) - before >= least, "P counted the hits")
    cached = lab.gateway.metric("tidegate_tokens_total", type="cached") - counted
    found = lab.count(lab.pair.prefill, LOCAL_HITS) - before
    assert cached >= least, f"P had {found:.0f} prompt tokens cached, the gateway counted {cached:.0f}"
    return f"P: {found:.0f} tokens cached, gateway: {cached:.0f}"


def local_prefill(lab: Lab) -> str:
    """D computes the prompt itself and P sees nothing of it"""
    pair = lab.pair
    idle = settled(lambda: (lab.count(pair.prefill, PROMPT_TOKENS),))
    _, external, local = settled(lambda: _sources(lab, pair.decode))
    reply = lab.ask(CHAT, prompt_fields(CHAT, story()))
    least = counts(reply)[0] - KV_BLOCK_TOKENS
    until(lambda: _sources(lab, pair.decode)[2] - local >= least, "D counted the prefill")
    after = settled(lambda: _sources(lab, pair.decode))
    same(after[1], external, "external_kv_transfer of D")
    same(settled(lambda: (lab.count(pair.prefill, PROMPT_TOKENS),)), idle, "prompt tokens of P")
    return f"local_compute: {after[2] - local:.0f} tokens"


def dynamo_turns(lab: Lab) -> str:
    """Dynamo's rule: a new prompt goes remote, the next turn local, and D has the first one's KV"""
    opening = story(20)
    first = lab.ask(CHAT, prompt_fields(CHAT, opening), path="remote")
    talk = [
        {"role": "user", "content": opening},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And of Italy?"},
    ]
    before = settled(lambda: (lab.count(lab.pair.decode, LOCAL_HITS),))[0]
    second = lab.ask(CHAT, {"messages": talk, **SAMPLED}, path="local")
    least = counts(first)[0] - 2 * KV_BLOCK_TOKENS
    until(lambda: lab.count(lab.pair.decode, LOCAL_HITS) - before >= least, "D counted its own hits")
    same(second.text, lab.reference(CHAT, {"messages": talk, **SAMPLED}).text, "text of the second turn")
    return f"second turn: {lab.count(lab.pair.decode, LOCAL_HITS) - before:.0f} tokens from D's cache"


def counted_as_seen(lab: Lab) -> str:
    """The gateway's metrics are the client's books: outcomes, token sums, nothing left in flight"""
    gateway, books = lab.gateway, lab.gateway.books
    total = books.outcomes.total()
    until(lambda: gateway.metric("tidegate_requests_total") == total, f"{total} requests counted")
    for outcome, asked in books.outcomes.items():
        same(gateway.metric("tidegate_requests_total", outcome=outcome), asked, f"requests that ended {outcome}")
    for kind, tokens in books.tokens.items():
        same(gateway.metric("tidegate_tokens_total", type=kind), tokens, f"{kind} tokens")
    for name in ("tidegate_inflight_requests", "tidegate_worker_inflight_requests", "tidegate_worker_inflight_tokens"):
        same(gateway.metric(name), 0, name)
    return f"{dict(books.outcomes)}, {dict(books.tokens)} tokens"


def one_record_each(lab: Lab) -> str:
    """The decision log has one record per request"""
    gateway, ids = lab.gateway, lab.gateway.books.request_ids
    until(lambda: gateway.metric("tidegate_decision_log_records_total") == len(ids), "all records written")
    records = list(read_decision_log(gateway.log))
    same(len(records), len(ids), "records")
    same({str(record.request_id) for record in records}, ids, "request ids")
    same(gateway.metric("tidegate_decision_log_dropped_total"), 0, "dropped records")
    return f"{len(records)} records"


BOOKS: tuple[Check, ...] = (counted_as_seen, one_record_each)


def _sources(lab: Lab, worker: Worker) -> tuple[float, float, float]:
    """(external hits, tokens loaded from elsewhere, tokens computed) of a worker so far."""
    external = lab.count(worker, BY_SOURCE, source="external_kv_transfer")
    return lab.count(worker, EXTERNAL_HITS), external, lab.count(worker, BY_SOURCE, source="local_compute")
