"""Splits a stream of server-sent events.

The rule of this module: one read is not one event. Bytes go in as they come and whole data payloads come out,
whatever the reads were.
"""

MAX_LINE_BYTES = 4 * 1024 * 1024
"""A longer line is an error rather than memory without bound."""


class SseSplitter:
    """Collects the `data` of each event; other fields and comments are dropped.

    Lines end in LF or CRLF. An event that the stream breaks off before its blank line is not given out.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of all events that `chunk` completes; raises ValueError for an endless line."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise ValueError(f"an event line of more than {MAX_LINE_BYTES} bytes")
        return [event for line in lines if (event := self._take(line.removesuffix(b"\r"))) is not None]

    def _take(self, line: bytes) -> bytes | None:
        """The event that this line completes, if it does."""
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            event = b"\n".join(self._data)
            self._data.clear()
            return event
        return None
