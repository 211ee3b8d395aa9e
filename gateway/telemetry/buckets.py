"""Where the histograms' boundaries are kept.

The rule of this module: a boundary list is named once and never depends on settings, so that the histograms of several
gateways, and of one before and after a reload, can be summed. Attainment is counted apart, against the bound in force.
"""

TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0,
    4.0, 5.0, 6.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
"""vLLM's `time_to_first_token_seconds`, so that gateway and engine quantiles line up in one panel, and between 0.1 and
7.5 s what objectives are usually set to."""

TPOT_BUCKETS_S = (
    0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0,
    7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
"""vLLM's `inter_token_latency_seconds`, and below 75 ms what objectives are usually set to; also for the mean time per
output token."""

DURATION_BUCKETS_S = (
    0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
"""vLLM's `e2e_request_latency_seconds`, begun at 0.05 for short answers."""

DECISION_BUCKETS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""llm-d's scheduler duration."""

SHARED_CALL_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""From a server beside the gateway to more than the default deadline, at which a call is given up."""

QUOTIENT_BUCKETS = (0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""A prediction over what came: 1 is exact, and what is above is as far off as its reciprocal below."""

RATIO_BUCKETS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares in [0,1]; the first counts what is exactly zero."""
