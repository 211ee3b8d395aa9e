"""The command where there is no server to start, and what it would play."""

import shutil

import pytest

from loadtest.replicas.__main__ import _plan, main
from loadtest.replicas.plan import Plan


def test_without_a_server_it_says_so_and_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "redis-server" in capsys.readouterr().err


def test_the_acceptance_is_what_is_played_unless_something_else_is_asked_for() -> None:
    assert _plan(None, is_quick=False) == Plan()
    assert Plan().sessions == 2000
    assert Plan().redis_gone_s == 20.0
    assert _plan(7, is_quick=False).sessions == _plan(7, is_quick=True).sessions == 7
    assert _plan(None, is_quick=True).sessions == 200
