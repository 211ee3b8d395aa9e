"""`python -m gateway.commands.healthcheck URL`: a container's health check, without curl in the image.

The rule of this module: the standard library only, and one request, since it runs every few seconds.
"""

import argparse
import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence

DEFAULT_URL = "http://127.0.0.1:8080/livez"
TIMEOUT_S = 2.0


def healthcheck(url: str, *, timeout_s: float = TIMEOUT_S) -> int:
    """0 where `url` answers with a 2xx within `timeout_s`, else 1, with the reason on standard error."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s):
            return 0
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Ask the URL on the command line."""
    parser = argparse.ArgumentParser(prog="python -m gateway.commands.healthcheck", description=__doc__)
    parser.add_argument("url", nargs="?", default=DEFAULT_URL)
    return healthcheck(parser.parse_args(argv).url)


if __name__ == "__main__":
    sys.exit(main())
