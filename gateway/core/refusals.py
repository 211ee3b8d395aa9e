"""Every reason not to route a request, with the HTTP answer that it deserves.

The rule of this module: a refusal kind has exactly one status, one OpenAI error code and one retry hint.
"""

from collections.abc import Mapping
from types import MappingProxyType

from gateway.core.types import RefusalKind

STATUS: Mapping[RefusalKind, int] = MappingProxyType(
    {
        RefusalKind.MODEL_NOT_FOUND: 404,
        # 503, not 429: an empty or broken pool is the operator's trouble, not the client's (llm-d-router#1735).
        RefusalKind.NO_DECODE_WORKER: 503,
        RefusalKind.EXCLUDED_ALL: 503,
    }
)
"""HTTP status by refusal."""

CODE: Mapping[RefusalKind, str] = MappingProxyType(
    {
        RefusalKind.MODEL_NOT_FOUND: "model_not_found",
        RefusalKind.NO_DECODE_WORKER: "no_worker_available",
        RefusalKind.EXCLUDED_ALL: "no_worker_available",
    }
)
"""The `code` of the OpenAI error body by refusal."""

RETRY_AFTER_S: Mapping[RefusalKind, float | None] = MappingProxyType(
    {
        RefusalKind.MODEL_NOT_FOUND: None,
        RefusalKind.NO_DECODE_WORKER: 1.0,
        RefusalKind.EXCLUDED_ALL: 1.0,
    }
)
"""Seconds for the Retry-After header by refusal; None means that a retry will not help."""
