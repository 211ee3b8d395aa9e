import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from loadtest.client.http import ConnectError, DisconnectedError, HttpClient, HttpError, Origin, _Connection
from tests.loadtest.client.scripted_server import ScriptedServer, chunk, replay, stream_head, whole

pytestmark = pytest.mark.e2e


class Heard:
    """A sink that keeps what it was told."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.sent = 0
        self.statuses: list[int] = []
        self.headers: Mapping[str, str] = {}
        self.body = b""
        self.refuses = refuses

    def on_sent(self) -> None:
        self.sent += 1

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.statuses.append(status)
        self.headers = headers

    def on_body(self, data: bytes) -> None:
        if self.refuses:
            raise ValueError("not what was asked for")
        self.body += data


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer(lambda _: replay((whole(b"hello"),))) as server:
        yield server


@pytest.fixture
def client(server: ScriptedServer) -> HttpClient:
    return HttpClient(Origin.of(server.url))


async def test_a_request_arrives_as_it_was_given(server: ScriptedServer, client: HttpClient) -> None:
    heard = Heard()
    await client.send("POST", "/v1/x?y=1", heard, headers={"x-request-id": "7"}, body=b"{}")
    (seen,) = server.seen
    assert (seen.method, seen.target, seen.body) == ("POST", "/v1/x?y=1", b"{}")
    assert seen.headers == {"host": f"127.0.0.1:{server.port}", "x-request-id": "7", "content-length": "2"}
    assert (heard.sent, heard.statuses, heard.body) == (1, [200], b"hello")


async def test_a_get_has_no_body_and_gives_the_whole_answer(server: ScriptedServer, client: HttpClient) -> None:
    assert await client.get("/metrics") == (200, b"hello")
    assert "content-length" not in server.seen[0].headers


async def test_a_chunked_answer_written_a_byte_at_a_time_is_whole(server: ScriptedServer, client: HttpClient) -> None:
    data = stream_head("X-Tidegate-Path: local") + chunk(b"abc") + chunk(b"def") + chunk(b"")
    server.script = lambda _: replay(bytes([byte]) for byte in data)
    heard = Heard()
    await client.send("POST", "/", heard)
    assert heard.body == b"abcdef"
    assert heard.headers["x-tidegate-path"] == "local"


async def test_a_connection_is_used_again(server: ScriptedServer, client: HttpClient) -> None:
    for _ in range(3):
        await client.get("/")
    assert server.connections == 1


async def test_requests_at_once_have_connections_of_their_own(server: ScriptedServer, client: HttpClient) -> None:
    await asyncio.gather(*(client.get("/") for _ in range(4)))
    assert server.connections == 4
    await asyncio.gather(*(client.get("/") for _ in range(4)))
    assert server.connections == 4


async def test_connection_close_is_obeyed(server: ScriptedServer, client: HttpClient) -> None:
    server.script = lambda _: replay((whole(b"", 200, "connection: close"),))
    await client.get("/")
    await client.get("/")
    assert server.connections == 2


async def test_a_body_without_a_length_ends_with_the_connection(server: ScriptedServer, client: HttpClient) -> None:
    server.script = lambda _: replay((b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n", b"to the ", b"end", None))
    assert await client.get("/") == (200, b"to the end")


async def test_informational_answers_are_passed_over(server: ScriptedServer, client: HttpClient) -> None:
    server.script = lambda _: replay((b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", whole(b"hello", 201)))
    heard = Heard()
    await client.send("GET", "/", heard)
    assert (heard.statuses, heard.body) == ([201], b"hello")


async def test_a_kept_connection_that_the_server_closed_is_replaced(server: ScriptedServer, client: HttpClient) -> None:
    await client.get("/")
    server.script = lambda seen: replay((None,) if seen.connection == 0 else (whole(b"again"),))
    assert await client.get("/") == (200, b"again")
    assert [seen.connection for seen in server.seen] == [0, 0, 1]


async def test_a_fresh_connection_that_closes_is_not_tried_again(server: ScriptedServer, client: HttpClient) -> None:
    server.script = lambda _: replay((None,))
    with pytest.raises(DisconnectedError):
        await client.get("/")
    assert len(server.seen) == 1


async def test_an_answer_that_breaks_off_is_not_tried_again(server: ScriptedServer, client: HttpClient) -> None:
    await client.get("/")
    server.script = lambda _: replay((stream_head(), chunk(b"abc"), None))
    with pytest.raises(DisconnectedError):
        await client.get("/")
    assert len(server.seen) == 2


async def test_what_is_not_http_is_an_error(server: ScriptedServer, client: HttpClient) -> None:
    server.script = lambda _: replay((b"SSH-2.0-OpenSSH\r\n",))
    with pytest.raises(HttpError):
        await client.get("/")


async def test_a_sink_may_refuse_the_body(server: ScriptedServer, client: HttpClient) -> None:
    with pytest.raises(HttpError, match="not what was asked for"):
        await client.send("POST", "/", Heard(refuses=True))
    await client.get("/")
    assert server.connections == 2


async def test_a_cancelled_exchange_cuts_its_connection(server: ScriptedServer, client: HttpClient) -> None:
    begun = asyncio.Event()

    async def hang(seen: object) -> AsyncIterator[bytes | None]:
        del seen
        yield stream_head()
        begun.set()
        while True:
            yield chunk(b" " * 65_536)
            await asyncio.sleep(0)

    server.script = hang
    task = asyncio.create_task(client.get("/"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(10):
        await server.hung_up.wait()
    server.script = lambda _: replay((whole(b"hello"),))
    assert await client.get("/") == (200, b"hello")
    assert server.connections == 2


async def test_a_connection_lost_before_its_request_does_not_wait_for_an_answer() -> None:
    connection = _Connection()
    connection.connection_made(asyncio.Transport())
    connection.connection_lost(None)
    heard = Heard()
    with pytest.raises(DisconnectedError):
        await connection.exchange(b"", heard)
    assert heard.sent == 0


async def test_no_server_is_a_connect_error(server: ScriptedServer) -> None:
    async with ScriptedServer(lambda _: replay(())) as gone:
        port = gone.port
    assert port != server.port
    with pytest.raises(ConnectError):
        await HttpClient(Origin.of(f"http://127.0.0.1:{port}")).get("/")


@pytest.mark.parametrize(
    ("url", "authority", "tls"),
    [
        ("http://gw", "gw:80", False),
        ("https://gw/v1", "gw:443", True),
        ("http://10.0.0.1:8080/v1", "10.0.0.1:8080", False),
        ("http://[::1]:8080/v1", "[::1]:8080", False),
    ],
)
def test_an_origin_is_read_from_a_url(url: str, authority: str, tls: bool) -> None:
    origin = Origin.of(url)
    assert (origin.authority, origin.tls) == (authority, tls)


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x", "http://", "", "http://h:port"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|[Pp]ort"):
        Origin.of(url)
