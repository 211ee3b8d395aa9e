"""How a vLLM server refuses a request.

Every refusal is an `ApiError`; its words and shape follow recordings of vLLM 0.32. Two families differ there: what
fails the body's schema has the type "Bad Request", what fails a later check "BadRequestError".
"""

from http import HTTPStatus
from typing import Self

import msgspec

_STATUSES = frozenset(HTTPStatus)


class ApiError(Exception):
    """A refusal with its HTTP status and the four fields of vLLM's error object."""

    def __init__(self, status: int, message: str, *, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """The error as JSON."""
        fields = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": fields})

    @classmethod
    def bad_request(cls, message: str, *, param: str | None = None, value: object = None) -> Self:
        """A parameter that makes no sense; the message names it and the value, where there is one."""
        if param is not None:
            suffix = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
            message = f"{message} ({suffix})"
        return cls(400, message, kind="BadRequestError", param=param)

    @classmethod
    def schema(cls, *, kind: str, loc: str, message: str, shown: str, detail: str = "") -> Self:
        """A body that does not fit the schema, in the words of FastAPI's validation report."""
        report = f"{{'type': '{kind}', 'loc': '{loc}', 'msg': '{message}', 'input': '{shown}'{detail}}}"
        return cls(400, f"1 validation error:\n  {report}", kind="Bad Request", param=loc)

    @classmethod
    def media_type(cls) -> Self:
        """A body that is not announced as JSON."""
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        return cls(400, message, kind="Bad Request")

    @classmethod
    def no_such_model(cls, asked: str, served: str) -> Self:
        """A model that this server does not have."""
        message = f"The model `{asked}` does not exist. Valid aliases: {served}."
        return cls(404, message, kind="NotFoundError", param="model")

    @classmethod
    def of_status(cls, status: int) -> Self:
        """An error of any status, named after it."""
        phrase = HTTPStatus(status).phrase if status in _STATUSES else "Unknown"
        kind = "".join(word.title() for word in phrase.split())
        return cls(status, phrase, kind=kind if kind.endswith("Error") else f"{kind}Error")

    @classmethod
    def internal(cls) -> Self:
        """The engine gave up on the request."""
        return cls(500, "Internal server error", kind="InternalServerError")
