"""Whatever hosts do in whatever order, blocks, tokens and time add up."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadtest.engine.kv_cache import Segment
from loadtest.engine.scheduler import Scheduler
from loadtest.engine.sequence import LiveSequence, Phase
from loadtest.engine.types import FinishReason, RequestFinished, TokenMade
from tests.loadtest.engine.engine_lab import Lab

ADD = st.fixed_dictionaries(
    {
        "prompt": st.integers(1, 40),
        "output": st.integers(1, 12),
        "text": st.integers(0, 2),
        "holds_kv": st.booleans(),
        "remote_share": st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    }
)
ACTION = st.one_of(
    ADD,
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("release"), st.integers(0, 30)),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.25, 1.0, 1.0, 3.0])),
)
LIMITS = st.fixed_dictionaries(
    {
        "total_blocks": st.integers(4, 24),
        "max_batched_tokens": st.integers(5, 40),
        "max_running": st.integers(1, 5),
        "hold_lease_s": st.sampled_from([2.0, 50.0]),
        "plans_ahead": st.booleans(),
        "transfer_latency_s": st.sampled_from([0.0, 0.5]),
    }
)


class Host:
    """Carries actions out and remembers what it asked for."""

    def __init__(self, limits: dict[str, float], *, tells_every_token: bool = True) -> None:
        self.lab = Lab(tells_every_token=tells_every_token, **limits)
        self.outputs: dict[str, int] = {}
        self.cancelled: set[str] = set()

    def act(self, action: dict | tuple) -> None:
        match action:
            case dict():
                self._add(**action)
            case ("cancel", number):
                if self.lab.engine.cancel(f"r{number}", self.lab.now_s):
                    self.cancelled.add(f"r{number}")
            case ("release", number):
                self.lab.engine.release_held(f"r{number}", self.lab.now_s)
            case ("wait", seconds):
                self.lab.run(self.lab.now_s + seconds)

    def _add(self, prompt: int, output: int, text: int, holds_kv: bool, remote_share: float) -> None:
        name = f"r{len(self.outputs)}"
        self.outputs[name] = output
        remote = int(prompt * remote_share)
        self.lab.add(name, prompt, output, text=text, holds_kv=holds_kv, remote_tokens=remote)


def check_blocks(lab: Lab) -> None:
    """Every reference belongs to a live sequence, and every block is in exactly one place."""
    lab.engine.snapshot()
    cache, batch = lab.engine._cache, lab.engine._scheduler.decoding
    owned = Counter(segment for sequence in live(lab) for segment in path(sequence))
    assert all(segment.references == n for segment, n in owned.items())
    named = sum(segment.blocks for segment in owned)
    nameless = sum(held_blocks(lab, sequence) - sequence.named_blocks for sequence in live(lab))
    assert named + nameless == cache.used_blocks
    assert cache.used_blocks + cache.available_blocks == lab.spec.total_blocks
    assert set(cache._released).isdisjoint(owned)
    assert sum(segment.blocks for segment in cache._released) == cache._released_blocks
    assert all(segment.references == 0 and segment.blocks > 0 for segment in cache._released)
    known = set(below(cache.root))
    assert known == set(owned) - {cache.root} | {segment for segment in cache._released if segment.hashes}
    assert batch.context_tokens == sum(known_tokens(lab, sequence) for sequence in batch.members)


def path(sequence: LiveSequence) -> Iterator[Segment]:
    """The segments that a sequence uses, the root among them."""
    segment = sequence.segment
    while segment is not None:
        yield segment
        segment = segment.parent


def below(segment: Segment) -> Iterator[Segment]:
    """All segments below one."""
    for first, child in segment.children.items():
        assert child.parent is segment
        assert child.hashes[0] == first
        assert -(-child.blocks // child.piece_blocks) == len(child.hashes)
        yield child
        yield from below(child)


def live(lab: Lab) -> list[LiveSequence]:
    """The sequences in the engine, and those that left but keep their blocks until after the next plan."""
    stepper = lab.engine._stepper
    changes = [*stepper._before_plan, *stepper._after_plan]
    gone = [sequence for _, sequence in changes if sequence.phase is Phase.GONE]
    return [*lab.engine._live.values(), *gone]


def known_tokens(lab: Lab, sequence: LiveSequence) -> int:
    """Prompt and output so far, the clock read."""
    done = lab.engine._scheduler.decoding.clock - sequence.joined_clock if sequence.phase is Phase.DECODING else 0
    return sequence.known_tokens + done


def held_blocks(lab: Lab, sequence: LiveSequence) -> int:
    """What a sequence was given: a decoding one has room for all tokens but, between steps, the newest."""
    if sequence.phase is not Phase.DECODING:
        return sequence.held_blocks
    written = known_tokens(lab, sequence) - 1 + lab.engine._scheduler.decoding._paid_steps
    return max(sequence.held_blocks, -(-written // lab.spec.block_tokens))


def check_step(lab: Lab) -> None:
    """The last step kept to the budget."""
    for work in lab.costs.steps[-1:]:
        tokens = work.decode_sequences + sum(new for new, _ in work.prefill)
        assert 0 < tokens <= lab.spec.max_batched_tokens
        assert work.sequences <= lab.spec.max_running


def check_outcomes(host: Host) -> None:
    """Each request finished once, with all its tokens, unless it was cancelled; and nothing is left."""
    lab = host.lab
    finished = [event for event in lab.events if isinstance(event, RequestFinished)]
    assert len({event.request_id for event in finished}) == len(finished)
    for name, output in host.outputs.items():
        tokens = len(lab.token_times(name))
        if name in host.cancelled:
            assert tokens <= output
        else:
            rejected = lab.finish(name).reason is FinishReason.REJECTED
            assert tokens == (0 if rejected else output)
    snapshot = lab.engine.snapshot()
    assert (snapshot.running, snapshot.waiting, snapshot.kv_used_ratio) == (0, 0, 0.0)
    assert snapshot.generated_tokens == sum(isinstance(event, TokenMade) for event in lab.events)
    assert snapshot.prefix_hit_tokens <= snapshot.prefix_queried_tokens


@settings(max_examples=250, deadline=None)
@given(limits=LIMITS, actions=st.lists(ACTION, max_size=40))
def test_blocks_tokens_and_time_add_up(limits: dict[str, float], actions: list[dict | tuple]) -> None:
    host = Host(limits)
    for action in actions:
        host.act(action)
        check_blocks(host.lab)
        check_step(host.lab)
    host.lab.drain()
    check_blocks(host.lab)
    check_outcomes(host)
    times = [event.at_s for event in host.lab.events]
    assert times == sorted(times)


@settings(max_examples=60, deadline=None)
@given(
    actions=st.lists(ADD, min_size=1, max_size=8),
    looks=st.lists(st.floats(0, 40, allow_nan=False), max_size=30),
)
def test_how_often_the_host_looks_changes_nothing(actions: list[dict], looks: list[float]) -> None:
    often, once = Host({"total_blocks": 12}), Host({"total_blocks": 12})
    for host in (often, once):
        for action in actions:
            host.act(action)
        host.lab.run(0.0)
    for at_s in sorted(looks):
        often.lab.run(at_s)
    often.lab.run(500)
    once.lab.run(500)
    assert often.lab.events == once.lab.events
    assert often.lab.engine.snapshot() == once.lab.engine.snapshot()


@settings(max_examples=150, deadline=None)
@given(limits=LIMITS, actions=st.lists(ACTION, max_size=30))
def test_hearing_first_tokens_only_changes_nothing(limits: dict[str, float], actions: list[dict | tuple]) -> None:
    every, first = Host(limits), Host(limits, tells_every_token=False)
    for host in (every, first):
        for action in actions:
            host.act(action)
        host.lab.drain()
    told = [event for event in every.lab.events if not (isinstance(event, TokenMade) and event.index)]
    assert sorted(first.lab.events, key=repr) == sorted(told, key=repr)
    assert first.lab.engine.snapshot() == every.lab.engine.snapshot()


@settings(max_examples=150, deadline=None)
@given(limits=LIMITS, actions=st.lists(ACTION, max_size=30))
@example(
    limits={"total_blocks": 4, "max_batched_tokens": 5, "max_running": 2, "plans_ahead": True},
    actions=[
        *({"prompt": 1, "output": output, "text": 0, "holds_kv": False, "remote_share": 0.0} for output in (2, 1, 1)),
        ("cancel", 0),
    ],
)
def test_jumping_over_steps_changes_nothing(limits: dict[str, float], actions: list[dict | tuple]) -> None:
    # Transfers and leases end between steps, so that no change falls on a step's very end: a jump may put it first.
    limits = limits | {
        "transfer_latency_s": 41 / 128 + 2**-24,
        "transfer_bytes_per_s": 64.0,
        "hold_lease_s": 50 + 2**-20,
    }
    jumping, stepping = Host(limits), Host(limits)
    with pytest.MonkeyPatch.context() as patch:
        run(jumping, actions)
        patch.setattr(Scheduler, "_steady_steps", lambda self: 1)
        run(stepping, actions)
    assert sorted(stepping.lab.events, key=repr) == sorted(jumping.lab.events, key=repr)
    assert stepping.lab.engine.snapshot() == jumping.lab.engine.snapshot()


def run(host: Host, actions: list[dict | tuple]) -> None:
    """Carry out actions, each a little after the one before."""
    for action in actions:
        host.lab.run(host.lab.now_s + 1 / 64)
        host.act(action)
    host.lab.drain()
