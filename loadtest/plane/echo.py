"""`python -m loadtest.plane.echo`: sends back what comes, on one connection: what a hop costs without any proxy.

The rule of this module: blocking calls and nothing else, so that what is measured is the kernel's. It prints its port
and ends with its connection.
"""

import socket

READ_BYTES = 65536


def main() -> None:
    """Serve one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        line, _ = listener.accept()
    with line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := line.recv(READ_BYTES):
            line.sendall(data)


if __name__ == "__main__":
    main()
