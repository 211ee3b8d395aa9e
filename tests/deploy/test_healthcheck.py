"""A container's health check against a real socket."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gateway.commands.healthcheck import healthcheck, main

pytestmark = pytest.mark.e2e


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(int(self.path[1:]))
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_answer_of_200_is_healthy(url: str) -> None:
    assert main([f"{url}/200"]) == 0


@pytest.mark.parametrize("status", [404, 500, 503])
def test_any_other_answer_is_not(url: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert healthcheck(f"{url}/{status}") == 1
    assert str(status) in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["http://127.0.0.1:1/livez", "no-url", "http://[/"])
def test_no_answer_is_not_healthy_and_no_crash(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert healthcheck(wrong) == 1
    assert wrong in capsys.readouterr().err


def test_a_proxy_of_the_environment_is_not_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert healthcheck(f"{url}/200") == 0
