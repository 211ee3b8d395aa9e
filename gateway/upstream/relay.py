"""What passes from the decode worker to the client.

The rule of this module: the worker's bytes are watched as they came, and the client gets them as they came but for two
documented edits: a usage chunk that it did not ask for is taken out, and behind a prefill leg the cached tokens are
the prefill worker's.
"""

from gateway.upstream.services import Headers
from gateway.upstream.watch import AnswerWatch, is_event_stream
from gateway.wire.dialects import Dialect
from gateway.wire.usage_edit import StreamEdit


class Relay:
    """Watches and, where there is reason to, edits one answer.

    Args:
        dialect: the route's.
        headers: the worker's, names in lower case.
        hide_usage: the usage chunk was asked for by the gateway alone.
        cached_tokens: the prefill worker's count; None where the decode worker's own is right.
    """

    __slots__ = ("_edit", "watch")

    def __init__(self, dialect: Dialect, headers: Headers, *, hide_usage: bool, cached_tokens: int | None) -> None:
        streamed = is_event_stream(headers)
        self.watch = AnswerWatch(dialect, streamed=streamed)
        edits = streamed and (hide_usage or cached_tokens is not None)
        self._edit = StreamEdit(hide_usage=hide_usage, cached_tokens=cached_tokens) if edits else None

    @property
    def edits(self) -> bool:
        """True where the client gets whole events only."""
        return self._edit is not None

    @property
    def reframes(self) -> bool:
        """True where the client may get another number of bytes than the worker sent: a stream can end in an error."""
        return self.watch.streamed

    def pass_on(self, data: bytes, now_s: float) -> bytes:
        """Take one read; give what the client gets for it, which may be nothing yet."""
        self.watch.feed(data, now_s)
        return data if self._edit is None else self._edit.feed(data)

    def finish(self, now_s: float) -> bytes:
        """The body ended: what was held back of its last event."""
        self.watch.finish(now_s)
        return b"" if self._edit is None else self._edit.finish()
