"""A store: what it keeps, where it points, and that whoever looks sees the old state or the new one."""

import shutil
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from policy_store import store as store_module
from policy_store.bundle import PATH_PART, Bundle
from policy_store.faults import BundleError, BundleFault, StoreError, UnknownVersion
from policy_store.store import KEPT_EARLIER, FileStore
from tests.policy_store.bundle_factories import bundle, forge

A, B, C = (bundle(max_local_tokens=tokens) for tokens in (1_000, 2_000, 3_000))


def ticking() -> Callable[[], datetime]:
    """A clock that moves on by a second whenever it is read."""
    seconds = count(1)
    return lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(seconds))


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """A store of three bundles, none of them active."""
    opened = FileStore(tmp_path / "store", clock=ticking())
    for each in (A, B, C):
        opened.add(each)
    return opened


def damage(store: FileStore, each: Bundle) -> None:
    (store.directory(each.version) / PATH_PART).write_bytes(b"{}")


class TestBundles:
    def test_what_is_added_is_kept_under_its_version(self, store: FileStore) -> None:
        assert store.versions() == sorted(each.version for each in (A, B, C))
        assert store.read(B.version) == B
        assert store.active() is None

    def test_adding_one_again_changes_nothing(self, store: FileStore) -> None:
        before = (store.directory(A.version) / PATH_PART).stat().st_ino
        assert store.add(A) == A.version
        assert (store.directory(A.version) / PATH_PART).stat().st_ino == before

    def test_adding_a_damaged_one_again_repairs_it(self, store: FileStore) -> None:
        damage(store, A)
        assert store.add(A) == A.version
        assert store.read(A.version) == A

    def test_all_are_listed_and_checked(self, store: FileStore) -> None:
        damage(store, B)
        (store.root / "bundles" / ".leftover").mkdir()
        listed = {stored.version: stored.bundle for stored in store.bundles()}
        assert (listed[A.version], listed[C.version]) == (A, C)
        refusal = listed[B.version]
        assert isinstance(refusal, BundleError)
        assert refusal.fault is BundleFault.DIGEST

    def test_one_under_anothers_name_is_refused(self, store: FileStore) -> None:
        shutil.rmtree(store.directory(B.version))
        shutil.copytree(store.directory(A.version), store.root / "bundles" / B.version)
        with pytest.raises(BundleError, match=f"its content is version {A.version}"):
            store.activate(B.version)

    @pytest.mark.parametrize("version", ["0" * 12, "", ".", "..", "../channels", "/etc", "a/b"])
    def test_versions_that_are_not_there_are_unknown(self, store: FileStore, version: str) -> None:
        for ask in (store.directory, store.read, store.activate):
            with pytest.raises(UnknownVersion):
                ask(version)

    def test_two_may_add_the_same_at_once(self, tmp_path: Path) -> None:
        store, start = FileStore(tmp_path), threading.Barrier(4)
        failures: list[Exception] = []

        def add() -> None:
            start.wait()
            try:
                assert store.add(A) == A.version
            except Exception as error:  # noqa: BLE001
                failures.append(error)

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert store.read(A.version) == A
        assert [entry.name for entry in (tmp_path / "bundles").iterdir()] == [A.version]


class TestPointer:
    def test_roll_backs_go_through_what_was_active(self, store: FileStore) -> None:
        for each in (A, B, C):
            store.activate(each.version)
        assert [store.rollback().version for _ in range(2)] == [B.version, A.version]
        with pytest.raises(StoreError, match="no earlier version"):
            store.rollback()
        assert store.active() == A.version

    def test_activating_the_active_one_moves_only_the_time(self, store: FileStore) -> None:
        store.activate(A.version)
        before = store.activate(B.version)
        after = store.activate(B.version)
        assert (after.version, after.earlier) == (before.version, before.earlier)
        assert after.at > before.at

    def test_switched_off_it_can_be_rolled_back_or_activated(self, store: FileStore) -> None:
        store.activate(A.version)
        assert store.switch_off().version is None
        assert store.active() is None
        assert store.switch_off().earlier == (A.version,)
        assert store.rollback().version == A.version
        store.switch_off()
        assert store.activate(B.version).earlier == (A.version,)

    def test_the_past_is_bounded(self, store: FileStore) -> None:
        for _ in range(KEPT_EARLIER):
            store.activate(A.version)
            store.activate(B.version)
        pointer = store.pointer()
        assert pointer is not None
        assert len(pointer.earlier) == KEPT_EARLIER

    def test_a_bundle_that_does_not_check_out_is_never_pointed_to(self, store: FileStore) -> None:
        store.activate(A.version)
        before = store.activate(B.version)
        damage(store, C)
        damage(store, A)
        with pytest.raises(BundleError, match="truncated"):
            store.activate(C.version)
        with pytest.raises(BundleError, match="truncated"):
            store.rollback()
        assert store.pointer() == before

    @pytest.mark.parametrize("fault", [BundleFault.NOT_FINITE, BundleFault.FEATURES, BundleFault.DIGEST])
    def test_each_way_to_be_bad_is_refused_with_its_reason(self, store: FileStore, fault: BundleFault) -> None:
        store.activate(A.version)
        directory = store.directory(B.version)
        raw = (directory / PATH_PART).read_bytes()
        match fault:
            case BundleFault.NOT_FINITE:
                forge(directory, files={PATH_PART: raw.replace(b"9.0", b"NaN")})
            case BundleFault.FEATURES:
                forge(directory, features=("isl_tokens", "tenant"))
            case _:
                (directory / PATH_PART).write_bytes(raw[: len(raw) // 2])
        with pytest.raises(BundleError) as refusal:
            store.activate(B.version)
        assert refusal.value.fault is fault
        assert store.active() == A.version

    def test_the_pointer_is_one_file_of_its_channel(self, store: FileStore) -> None:
        store.activate(A.version)
        canary = FileStore(store.root, channel="canary", clock=ticking())
        assert canary.pointer() is None
        canary.activate(B.version)
        assert (store.active(), canary.active()) == (A.version, B.version)
        assert sorted(entry.name for entry in (store.root / "channels").iterdir()) == ["canary.json", "stable.json"]

    @pytest.mark.parametrize(
        "content", ["", "{", "[]", '{"version": "../../etc", "at": ""}', '{"version": 1, "at": ""}']
    )
    def test_what_is_no_pointer_is_told_and_can_be_replaced(self, store: FileStore, content: str) -> None:
        store.activate(A.version)
        (store.root / "channels" / "stable.json").write_text(content)
        with pytest.raises(BundleError, match="is not a pointer") as refusal:
            store.pointer()
        assert refusal.value.fault is BundleFault.POINTER
        assert store.activate(B.version) == store.pointer()

    def test_a_store_that_is_not_there_is_told_and_not_made(self, tmp_path: Path) -> None:
        nowhere = FileStore(tmp_path / "nowhere")
        with pytest.raises(BundleError, match="there is no policy store") as refusal:
            nowhere.pointer()
        assert refusal.value.fault is BundleFault.POINTER
        for move in (nowhere.rollback, nowhere.switch_off, lambda: nowhere.activate(A.version)):
            with pytest.raises(StoreError):
                move()
        assert nowhere.versions() == []
        assert list(tmp_path.iterdir()) == []

    def test_a_pointer_that_cannot_be_written_stays(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        before = store.activate(A.version)

        def full(path: Path, raw: bytes) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(store_module, "put_file", full)
        with pytest.raises(OSError, match="No space left"):
            store.activate(B.version)
        assert store.pointer() == before

    def test_whoever_reads_while_others_move_it_sees_a_whole_pointer_to_a_sound_bundle(self, tmp_path: Path) -> None:
        for each in (A, B):
            FileStore(tmp_path).add(each)
        FileStore(tmp_path).activate(A.version)
        over, seen = threading.Event(), set[str | None]()

        def read() -> None:
            while not over.is_set():
                seen.add(FileStore(tmp_path).active())

        reader = threading.Thread(target=read)
        writers = [threading.Thread(target=_move_often, args=(tmp_path, each)) for each in (A, B)]
        reader.start()
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        over.set()
        reader.join()
        assert seen <= {A.version, B.version}
        assert FileStore(tmp_path).active() in seen


def _move_often(root: Path, each: Bundle) -> None:
    for _ in range(20):
        FileStore(root).activate(each.version)


class StoreMachine(RuleBasedStateMachine):
    """Any sequence of moves against a list that is moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.store = FileStore(Path(self.directory.name), clock=ticking())
        for each in (A, B, C):
            self.store.add(each)
        self.version: str | None = None
        self.past: list[str] = []

    def teardown(self) -> None:
        self.directory.cleanup()

    @rule(each=st.sampled_from([A, B, C]))
    def activate(self, each: Bundle) -> None:
        self.store.activate(each.version)
        if self.version not in (None, each.version):
            self.past.append(str(self.version))
        self.version = each.version

    @rule()
    def rollback(self) -> None:
        if self.past:
            assert self.store.rollback().version == self.past[-1]
            self.version = self.past.pop()
        else:
            with pytest.raises(StoreError):
                self.store.rollback()

    @rule()
    def switch_off(self) -> None:
        self.store.switch_off()
        if self.version is not None:
            self.past.append(self.version)
        self.version = None

    @invariant()
    def the_pointer_is_where_it_should_be(self) -> None:
        pointer = self.store.pointer()
        if pointer is None:
            assert (self.version, self.past) == (None, [])
        else:
            assert (pointer.version, pointer.earlier) == (self.version, tuple(self.past[::-1]))


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=10, stateful_step_count=15, deadline=None)
