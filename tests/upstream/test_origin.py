import pytest

from gateway.upstream.origin import parse_origin


@pytest.mark.parametrize(
    ("url", "authority", "base_path", "port"),
    [
        ("http://10.0.0.7:8000", b"10.0.0.7:8000", b"", 8000),
        ("http://gpu-3/", b"gpu-3", b"", 80),
        ("http://gpu-3:80", b"gpu-3", b"", 80),
        ("http://GPU-3:8000/prefix/", b"gpu-3:8000", b"/prefix", 8000),
        ("http://gpu-3:8000/a/b", b"gpu-3:8000", b"/a/b", 8000),
        ("http://[::1]:8000", b"[::1]:8000", b"", 8000),
    ],
)
def test_worker_url_gives_host_header_and_prefix(url: str, authority: bytes, base_path: bytes, port: int) -> None:
    origin = parse_origin(url)
    assert (origin.authority, origin.base_path, origin.port) == (authority, base_path, port)


def test_ipv6_host_is_dialled_without_brackets() -> None:
    assert parse_origin("http://[::1]:8000").host == "::1"


@pytest.mark.parametrize("url", ["http://10.0.0.7:8000", "http://gpu-3", "http://gpu-3/prefix", "http://[::1]:8000"])
def test_origin_prints_as_its_url(url: str) -> None:
    assert str(parse_origin(url)) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gpu-3:8000",
        "https://gpu-3",
        "unix:///run/worker",
        "http://",
        "http://:8000",
        "http://user@gpu-3",
        "http://@gpu-3",
        "http://gpu-3/?x=1",
        "http://gpu-3/?",
        "http://gpu-3/#x",
        "http://gpu-3:0",
        "http://gpu-3:65536",
        "http://gpu-3:http",
        "http://gpu 3",
        "http://gpu-3\r\nx: y",
        "http://gpu-3/\tp",
        "http://gpü-3",
    ],
)
def test_url_that_is_no_origin_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="worker URL"):
        parse_origin(url)
