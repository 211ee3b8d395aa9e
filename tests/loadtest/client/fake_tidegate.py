"""A scripted Tidegate: it answers like a worker behind a gateway and counts what it did in `/metrics`."""

import json
from collections import Counter

from tests.loadtest.client.scripted_server import Answer, Seen, completion, replay, whole


class FakeTidegate:
    """Sends every other request over the remote path; fails those whose number is in `failing`."""

    def __init__(self, *, failing: frozenset[int] = frozenset()) -> None:
        self.failing = failing
        self.counts: Counter[str] = Counter()
        self.number = -1

    def __call__(self, seen: Seen) -> Answer:
        if seen.target == "/metrics":
            return replay((whole(self.page().encode(), 200, "content-type: text/plain"),))
        if seen.target == "/v1/models":
            return replay((whole(b'{"data": [{"id": "llama"}]}'),))
        self.number += 1
        return self._serve(seen, "remote" if self.number % 2 else "local")

    def page(self) -> str:
        return "".join(f"{series} {value}\n" for series, value in self.counts.items())

    def _serve(self, seen: Seen, path: str) -> Answer:
        self.counts[f'tidegate_path_total{{path="{path}"}}'] += 1
        if self.number in self.failing:
            self.counts[f'tidegate_requests_total{{path="{path}",outcome="upstream_error"}}'] += 1
            body = json.dumps({"error": {"message": "worker lost"}}).encode()
            return replay((whole(body, 502, f"x-tidegate-path: {path}"),))
        tokens = len(seen.json["messages"][0]["content"]) // 4
        self.counts[f'tidegate_requests_total{{path="{path}",outcome="ok"}}'] += 1
        self.counts['tidegate_tokens_total{type="input"}'] += tokens
        self.counts['tidegate_tokens_total{type="output"}'] += seen.json["max_tokens"]
        self.counts["tidegate_ttft_seconds_count"] += 1
        self.counts["tidegate_tpot_seconds_count"] += 1
        return completion(seen, f"x-tidegate-path: {path}", "x-tidegate-worker: d0")
