"""Which addresses a request may name.

The rule of this module: what is not listed is not called. An address is read in one strict spelling; names are never
resolved to be compared, so a name is allowed only where it is listed itself.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
MAX_HOST_PORT_CHARS = 300
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host, in lower case or as a canonical IP address without brackets, and its port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_host_port(text: str) -> HostPort | None:
    """Read `host:port`, an IPv6 address in brackets; None for anything else."""
    if len(text) > MAX_HOST_PORT_CHARS:
        return None
    host_text, colon, port_text = text.rpartition(":")
    host, port = _host(host_text), _port(port_text)
    return None if not colon or host is None or port is None else HostPort(host, port)


class AllowList:
    """Hosts, host:port pairs and CIDR ranges.

    Raises:
        ValueError: a rule is none of these.
    """

    def __init__(self, rules: Sequence[str]) -> None:
        self._hosts: set[str] = set()
        self._pairs: set[HostPort] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for rule in rules:
            self._add(rule)

    def permits(self, target: HostPort) -> bool:
        """Whether the target is listed."""
        if target in self._pairs or target.host in self._hosts:
            return True
        address = _address(target.host)
        return address is not None and any(address in network for network in self._networks)

    def _add(self, rule: str) -> None:
        if "/" in rule:
            self._networks.append(ip_network(rule))
        elif (host := _host(rule) or _bare_ipv6(rule)) is not None:
            self._hosts.add(host)
        elif (pair := parse_host_port(rule)) is not None:
            self._pairs.add(pair)
        else:
            raise ValueError(f"{rule!r} is no host, host:port or CIDR range")


def _host(text: str) -> str | None:
    if text.startswith("[") and text.endswith("]"):
        return _bare_ipv6(text[1:-1])
    address = _address(text)
    if isinstance(address, IPv4Address):
        return str(address)
    name = text.lower()
    return name if text.isascii() and _NAME.fullmatch(name) else None


def _bare_ipv6(text: str) -> str | None:
    address = _address(text)
    # A zone names an interface of this machine, which is no business of a request.
    return str(address) if isinstance(address, IPv6Address) and address.scope_id is None else None


def _address(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _port(text: str) -> int | None:
    port = int(text) if _PORT.fullmatch(text) else 0
    return port if 1 <= port <= 65535 else None
