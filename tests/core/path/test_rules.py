from random import Random
from typing import Any

import pytest

from gateway.core.path.base import PathPolicy, PathQuestion, PolicyError
from gateway.core.path.rules import AlwaysLocal, AlwaysRemote, DynamoMode, DynamoRule, LlmdRule
from gateway.core.types import Path, PathChoice, Reason, WorkerView
from tests.core.factories import question, view


def ask(policy: PathPolicy, about: PathQuestion) -> PathChoice:
    return policy.choose(about, Random(0))


def test_always_local_and_always_remote_do_what_they_say() -> None:
    long, short = question(100_000), question(1)
    assert {ask(AlwaysLocal(), q).path for q in (long, short)} == {Path.LOCAL}
    assert {ask(AlwaysRemote(), q).path for q in (long, short)} == {Path.REMOTE}


class TestDynamoByEffectiveLength:
    """methods.md 1.1: the worked cases and both inequalities of `isl_bounding`."""

    @pytest.mark.parametrize(
        ("prompt", "cached", "path"),
        [
            pytest.param(1_000, 14 * 64, Path.LOCAL, id="1000 tokens, 14 blocks of 64 cached"),
            pytest.param(100_000, 64_000, Path.REMOTE, id="100k tokens, 64k cached"),
            pytest.param(200, 0, Path.REMOTE, id="200 tokens, nothing cached: the ratio is 1"),
            pytest.param(10_000, 10_000 - 2048, Path.REMOTE, id="exactly 2048 tokens uncached"),
            pytest.param(0, 0, Path.LOCAL, id="an empty prompt"),
            pytest.param(1, 0, Path.REMOTE, id="one token, not cached"),
            pytest.param(500, 4_096, Path.LOCAL, id="more cached than the prompt has"),
        ],
    )
    def test_worked_cases(self, prompt: int, cached: int, path: Path) -> None:
        assert ask(DynamoRule(), question(prompt, decode_hit=cached)).path is path

    @pytest.mark.parametrize(("uncached", "path"), [(2047, Path.LOCAL), (2048, Path.REMOTE), (2049, Path.REMOTE)])
    def test_length_bound_is_strict(self, uncached: int, path: Path) -> None:
        prompt = 100_000
        assert ask(DynamoRule(), question(prompt, decode_hit=prompt - uncached)).path is path

    @pytest.mark.parametrize(("uncached", "path"), [(699, Path.LOCAL), (700, Path.REMOTE), (701, Path.REMOTE)])
    def test_ratio_bound_is_strict(self, uncached: int, path: Path) -> None:
        assert ask(DynamoRule(), question(1000, decode_hit=1000 - uncached)).path is path

    def test_a_full_ratio_bound_still_keeps_an_uncached_prompt_remote(self) -> None:
        rule = DynamoRule(eff_isl_ratio_threshold=1.0)
        assert ask(rule, question(1000)).path is Path.REMOTE
        assert ask(rule, question(1000, decode_hit=1)).path is Path.LOCAL

    @pytest.mark.parametrize("rule", [DynamoRule(eff_isl_threshold=0), DynamoRule(eff_isl_ratio_threshold=0.0)])
    def test_a_bound_of_zero_never_bypasses(self, rule: DynamoRule) -> None:
        assert ask(rule, question(0)).path is Path.REMOTE
        assert ask(rule, question(1000, decode_hit=1000)).path is Path.REMOTE

    def test_prefill_load_is_not_looked_at(self) -> None:
        busy = view("p0", prefill_tokens=10**9, max_batched_tokens=1)
        rule = DynamoRule(prefill_busy_threshold=0.0)
        assert ask(rule, question(200, prefill=busy)).path is Path.REMOTE

    def test_reason_tells_the_side_of_the_bound(self) -> None:
        assert ask(DynamoRule(), question(1000, decode_hit=900)).reason is Reason.SHORT_EFFECTIVE_ISL
        choice = ask(DynamoRule(), question(1000))
        assert choice.reason is Reason.LONG_EFFECTIVE_ISL
        assert "1000 of 1000" in choice.words
        assert "2048" in choice.words


class TestDynamoByPrefillLoad:
    RULE = DynamoRule(mode=DynamoMode.PREFILL_LOAD, prefill_busy_threshold=0.5)

    @pytest.mark.parametrize(("tokens", "path"), [(4095, Path.REMOTE), (4096, Path.REMOTE), (4097, Path.LOCAL)])
    def test_busy_is_strictly_above_the_share_of_the_step_budget(self, tokens: int, path: Path) -> None:
        prefill = view("p0", prefill_tokens=tokens, max_batched_tokens=8192)
        assert ask(self.RULE, question(100_000, prefill=prefill)).path is path

    def test_an_unknown_step_budget_is_not_busy(self) -> None:
        choice = ask(self.RULE, question(prefill=view("p0", prefill_tokens=10**9, max_batched_tokens=None)))
        assert (choice.path, choice.reason) == (Path.REMOTE, Reason.PREFILL_FREE)

    @pytest.mark.parametrize(("tokens", "path"), [(0, Path.REMOTE), (1, Path.LOCAL)])
    def test_a_threshold_of_zero_bypasses_at_any_load(self, tokens: int, path: Path) -> None:
        rule = DynamoRule(mode=DynamoMode.PREFILL_LOAD, prefill_busy_threshold=0.0)
        prefill = view("p0", prefill_tokens=tokens, max_batched_tokens=8192)
        assert ask(rule, question(prefill=prefill)).path is path

    def test_length_is_not_looked_at(self) -> None:
        free = view("p0", prefill_tokens=0, max_batched_tokens=8192)
        assert ask(self.RULE, question(0, prefill=free)).path is Path.REMOTE


class TestDynamoByEither:
    RULE = DynamoRule(mode=DynamoMode.ISL_OR_LOAD, prefill_busy_threshold=1.0)
    FREE = view("p0", prefill_tokens=8192, max_batched_tokens=8192)
    BUSY = view("p0", prefill_tokens=8193, max_batched_tokens=8192)

    @pytest.mark.parametrize(
        ("cached", "busy", "path", "reason"),
        [
            (900, False, Path.LOCAL, Reason.SHORT_EFFECTIVE_ISL),
            (900, True, Path.LOCAL, Reason.SHORT_EFFECTIVE_ISL),
            (0, True, Path.LOCAL, Reason.PREFILL_BUSY),
            (0, False, Path.REMOTE, Reason.LONG_EFFECTIVE_ISL),
        ],
    )
    def test_either_bypasses(self, cached: int, busy: bool, path: Path, reason: Reason) -> None:
        prefill = self.BUSY if busy else self.FREE
        choice = ask(self.RULE, question(1000, decode_hit=cached, prefill=prefill))
        assert (choice.path, choice.reason) == (path, reason)

    @pytest.mark.parametrize(("uncached", "path"), [(2047, Path.LOCAL), (2048, Path.REMOTE)])
    def test_length_bound_is_strict(self, uncached: int, path: Path) -> None:
        about = question(100_000, decode_hit=100_000 - uncached, prefill=self.FREE)
        assert ask(self.RULE, about).path is path

    def test_an_unknown_step_budget_leaves_it_to_the_length(self) -> None:
        unknown = view("p0", prefill_tokens=10**9)
        assert ask(self.RULE, question(1000, prefill=unknown)).path is Path.REMOTE


class TestDynamoDecodeGuard:
    """Blocks held plus this prompt's, above a share of all blocks, veto a bypass."""

    RULE = DynamoRule(decode_busy_threshold=0.5)

    @staticmethod
    def _bypass_at(held_blocks: int, *, prompt: int = 160) -> PathQuestion:
        # 100 blocks of 16 tokens; a prompt of 160 tokens, wholly cached, is 10 blocks.
        decode = view("d0", kv_tokens=held_blocks * 16, kv_capacity_tokens=1600, hit_tokens=prompt)
        return question(prompt, decode_hit=prompt, decode=decode)

    @pytest.mark.parametrize(("held", "path"), [(39, Path.LOCAL), (40, Path.LOCAL), (41, Path.REMOTE)])
    def test_the_veto_is_strictly_above_the_share(self, held: int, path: Path) -> None:
        choice = ask(self.RULE, self._bypass_at(held))
        assert choice.path is path
        assert (choice.reason is Reason.DECODE_BUSY) == (path is Path.REMOTE)

    def test_a_started_block_counts_whole(self) -> None:
        assert ask(self.RULE, self._bypass_at(40, prompt=161)).path is Path.REMOTE

    @pytest.mark.parametrize(
        "decode",
        [
            view("d0", kv_capacity_tokens=None, hit_tokens=160),
            view("d0", kv_capacity_tokens=1600, kv_block_tokens=None, hit_tokens=160),
        ],
        ids=["capacity", "block size"],
    )
    def test_an_unknown_capacity_or_block_size_vetoes(self, decode: WorkerView) -> None:
        about = question(160, decode_hit=160, decode=decode)
        assert ask(DynamoRule(), about).path is Path.LOCAL
        assert ask(self.RULE, about).reason is Reason.DECODE_BUSY

    def test_a_share_of_zero_vetoes_every_bypass_that_needs_a_block(self) -> None:
        rule = DynamoRule(decode_busy_threshold=0.0)
        assert ask(rule, self._bypass_at(0)).path is Path.REMOTE
        assert ask(rule, self._bypass_at(0, prompt=0)).path is Path.LOCAL

    @pytest.mark.parametrize("mode", DynamoMode)
    def test_every_mode_is_guarded(self, mode: DynamoMode) -> None:
        busy = view("p0", prefill_tokens=1, max_batched_tokens=8192)
        full = view("d0", kv_tokens=1600, kv_capacity_tokens=1600, hit_tokens=160)
        about = question(160, decode_hit=160, prefill=busy, decode=full)
        rule = DynamoRule(mode=mode, prefill_busy_threshold=0.0)
        assert ask(rule, about).path is Path.LOCAL
        guarded = DynamoRule(mode=mode, prefill_busy_threshold=0.0, decode_busy_threshold=0.5)
        assert ask(guarded, about).reason is Reason.DECODE_BUSY

    def test_a_remote_choice_keeps_its_own_reason(self) -> None:
        full = view("d0", kv_tokens=1600, kv_capacity_tokens=1600)
        assert ask(self.RULE, question(1000, decode=full)).reason is Reason.LONG_EFFECTIVE_ISL


def test_dynamos_five_keys_have_dynamos_defaults() -> None:
    rule = DynamoRule()
    assert (rule.mode, rule.eff_isl_threshold, rule.eff_isl_ratio_threshold) == ("isl_bounding", 2048, 0.7)
    assert rule.prefill_busy_threshold is None
    assert rule.decode_busy_threshold is None


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"eff_isl_threshold": -1}, "eff_isl_threshold"),
        ({"eff_isl_ratio_threshold": -0.01}, "eff_isl_ratio_threshold"),
        ({"eff_isl_ratio_threshold": 1.01}, "eff_isl_ratio_threshold"),
        ({"eff_isl_ratio_threshold": float("nan")}, "eff_isl_ratio_threshold"),
        ({"prefill_busy_threshold": -0.01}, "prefill_busy_threshold"),
        ({"prefill_busy_threshold": float("nan")}, "prefill_busy_threshold"),
        ({"decode_busy_threshold": -0.01}, "decode_busy_threshold"),
        ({"decode_busy_threshold": float("nan")}, "decode_busy_threshold"),
        ({"mode": DynamoMode.PREFILL_LOAD}, "prefill_busy_threshold"),
        ({"mode": DynamoMode.ISL_OR_LOAD}, "prefill_busy_threshold"),
    ],
)
def test_dynamo_refuses_keys_that_make_no_sense(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(PolicyError, match=named):
        DynamoRule(**keys)


class TestLlmd:
    @pytest.mark.parametrize("prompt", [0, 1, 1_000_000])
    def test_by_default_it_never_disaggregates(self, prompt: int) -> None:
        assert LlmdRule().non_cached_tokens == LlmdRule().prompt_tokens == 0
        assert ask(LlmdRule(), question(prompt)).path is Path.LOCAL

    @pytest.mark.parametrize(("prompt", "path"), [(511, Path.LOCAL), (512, Path.REMOTE), (513, Path.REMOTE)])
    def test_the_uncached_minimum_is_inclusive(self, prompt: int, path: Path) -> None:
        assert ask(LlmdRule(non_cached_tokens=512), question(prompt)).path is path

    @pytest.mark.parametrize(("prompt", "path"), [(1023, Path.LOCAL), (1024, Path.REMOTE), (1025, Path.REMOTE)])
    def test_the_prompt_minimum_is_inclusive(self, prompt: int, path: Path) -> None:
        assert ask(LlmdRule(non_cached_tokens=1, prompt_tokens=1024), question(prompt)).path is path

    @pytest.mark.parametrize(("cached", "path"), [(15, Path.REMOTE), (16, Path.LOCAL), (31, Path.LOCAL)])
    def test_only_whole_cached_blocks_count(self, cached: int, path: Path) -> None:
        assert ask(LlmdRule(non_cached_tokens=1000), question(1000, decode_hit=cached)).path is path

    def test_an_unknown_block_size_counts_tokens(self) -> None:
        decode = view("d0", kv_block_tokens=None, hit_tokens=1)
        assert ask(LlmdRule(non_cached_tokens=1000), question(1000, decode=decode)).path is Path.LOCAL

    def test_more_cached_than_the_prompt_is_all_of_it(self) -> None:
        decode = view("d0", hit_tokens=4096)
        choice = ask(LlmdRule(non_cached_tokens=17), question(1000, decode=decode))
        # 1000 tokens are 62 whole blocks of 16 and 8 tokens over.
        assert choice.path is Path.LOCAL
        assert choice.words.startswith("8 of 1000")

    @pytest.mark.parametrize("keys", [{"non_cached_tokens": -1}, {"prompt_tokens": -1}])
    def test_it_refuses_negative_minima(self, keys: dict[str, Any]) -> None:
        with pytest.raises(PolicyError):
            LlmdRule(**keys)
