"""Agents that resend their history, each turn by way of the next replica.

The rule of this module: what a session says and how long it thinks is drawn from its own number. A turn that failed is
tried again, as an agent would; a session ends when it has had all its turns, or has failed too often.
"""

import asyncio
import time
from random import Random

import msgspec

from loadtest.replicas.balancer import Balancer, Exchanged, NobodyThere
from loadtest.replicas.plan import Plan
from loadtest.replicas.records import Played, Tried
from loadtest.traces.prompts import WORDS

TRIES = 5
"""Of one turn."""
RETRY_PAUSE_S = 1.0
SESSION_HEADER = "x-session-id"
_VOCABULARY = WORDS.split()
_BYTES_PER_WORD = 4


class Crowd:
    """All sessions of a run.

    Args:
        balancer: where the requests go.
        plan: how many and how they behave.
        model: that they ask for.

    Attributes:
        tried: every try of a turn so far.
        played: sessions that have ended.
        peak: sessions that were under way at once.
    """

    def __init__(self, balancer: Balancer, plan: Plan, *, model: str) -> None:
        self.tried: list[Tried] = []
        self.played: list[Played] = []
        self.peak = 0
        self._balancer = balancer
        self._plan = plan
        self._model = model
        self._open = 0
        self._begun = 0
        self._is_ending = False

    async def run(self) -> None:
        """Play until `end` was called and the last session is over."""
        async with asyncio.TaskGroup() as group:
            for place in range(self._plan.sessions):
                group.create_task(self._place(place))

    def end(self) -> None:
        """Begin no further session."""
        self._is_ending = True

    async def _place(self, place: int) -> None:
        await asyncio.sleep(self._plan.ramp_s * place / self._plan.sessions)
        while not self._is_ending:
            number, self._begun = self._begun, self._begun + 1
            self._open += 1
            self.peak = max(self.peak, self._open)
            session = _Session(number, self._plan, self._model)
            await self._play(session)
            self._open -= 1

    async def _play(self, session: "_Session") -> None:
        while session.is_going_on:
            exchanged = await self._turn(session)
            session.take(exchanged)
            if session.is_going_on:
                await asyncio.sleep(session.think_s())
        self.played.append(session.played())

    async def _turn(self, session: "_Session") -> Exchanged | None:
        """One turn, tried until it ends well; None where it never did."""
        for _ in range(TRIES):
            body, headers = session.request()
            try:
                exchanged = await self._balancer.send(session.next_replica(), headers, body)
            except NobodyThere:
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            self.tried.append(session.tried(exchanged))
            if exchanged.error is None:
                return exchanged
            await asyncio.sleep(RETRY_PAUSE_S)
        return None


class _Session:
    """One conversation, as its client has it."""

    def __init__(self, number: int, plan: Plan, model: str) -> None:
        self._rng = Random(f"{plan.seed}/{number}")  # noqa: S311 (not a secret)
        self._plan = plan
        self._model = model
        self._name = f"{self._rng.getrandbits(64):016x}"
        self._dealt = number
        self._turns = self._rng.randint(*plan.turns)
        self._turn = 1
        self._home: str | None = None
        self._gave_up = False
        self._messages = [_message("user", self._text(plan.first_bytes))]

    @property
    def is_going_on(self) -> bool:
        return self._turn <= self._turns and not self._gave_up

    def think_s(self) -> float:
        return self._rng.uniform(*self._plan.think_s)

    def next_replica(self) -> int:
        self._dealt += 1
        return self._dealt

    def request(self) -> tuple[bytes, dict[str, str]]:
        body = {
            "model": self._model,
            "messages": self._messages,
            "max_tokens": self._rng.randint(*self._plan.output_tokens),
            "ignore_eos": True,
            "stream": True,
        }
        return msgspec.json.encode(body), {"content-type": "application/json", SESSION_HEADER: self._name}

    def tried(self, exchanged: Exchanged) -> Tried:
        return Tried(
            session=self._name,
            turn=self._turn,
            replica=exchanged.replica,
            sent_s=exchanged.sent_s,
            ended_s=exchanged.ended_s,
            worker=exchanged.worker,
            pinned_to=self._home,
            error=exchanged.error,
        )

    def take(self, exchanged: Exchanged | None) -> None:
        """The turn is over; without an answer so is the session."""
        if exchanged is None:
            self._gave_up = True
            return
        self._home = exchanged.worker
        self._turn += 1
        question = _message("user", self._text(self._plan.next_bytes))
        self._messages += [_message("assistant", exchanged.text), question]

    def played(self) -> Played:
        return Played(
            session=self._name, ended_s=time.monotonic(), turns=self._turn - 1, is_whole=self._turn > self._turns
        )

    def _text(self, size: tuple[int, int]) -> str:
        return " ".join(self._rng.choices(_VOCABULARY, k=self._rng.randint(*size) // _BYTES_PER_WORD))


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
