"""Stores: what is stored is what the sweep returns; resumed, extended, verified, repaired and refused as promised."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rules
import xarray as xr
from grids import BLOCK_SEEDS, LEVELS, POLICIES, SEEDS, SLACK, assert_same_bits, records, run, work
from numcodecs import Blosc
from numcodecs.checksum32 import CRC32

import sweep
from sweep import provenance, runner, stores
from sweep import work as work_module
from sweep.blocks import Block
from sweep.stores import block_store, chunks, grid_file, lifecycle
from sweep.stores.files import _Objects, _owner, files_at


def always_last(view: Any, request: Any, parameters: Any) -> Any:
    """Send everything to the last replica."""
    return view.wait_ms.size - 1


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    with rules.registered(("always_last", always_last, {})):
        yield


@pytest.fixture(scope="module")
def memory() -> xr.Dataset:
    return run()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "out.zarr"
    run(path)
    return path


class Computed:
    """Counts the blocks that are computed, by their records' names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks: list[Block] = []
        write = block_store.BlockStore.write

        def counted(kept: Any, grid: Any, layout: Any, block: Block, *rest: Any) -> None:
            self.blocks.append(block)
            write(kept, grid, layout, block, *rest)

        monkeypatch.setattr(block_store.BlockStore, "write", counted)

    def cells(self) -> int:
        """Return the number of cells per utilisation that were computed: those that were there left out."""
        return sum(int(np.prod(block.shape) - np.prod(block.have)) for block in self.blocks)


@pytest.fixture
def computed(store: Path, monkeypatch: pytest.MonkeyPatch) -> Computed:
    return Computed(monkeypatch)


def forget(store: Path, *names: str) -> None:
    for name in names or sorted(records(store))[::2]:
        (store / "blocks" / name).unlink()


# --- What is stored ----------------------------------------------------------------------------------------------


def test_store__is_what_the_sweep_returns(store: Path, memory: xr.Dataset) -> None:
    assert_same_bits(sweep.open(store), memory)
    assert_same_bits(xr.open_zarr(store), memory)
    assert len(records(store)) == len(POLICIES) * 4
    assert list((store / "tmp").iterdir()) == []


def test_store__run_returns_it_lazily(store: Path) -> None:
    opened = run(store)
    assert not opened.p99_queue_wait_ms.variable._in_memory
    assert opened.p99_queue_wait_ms.encoding["chunks"] == (1, 3, 2, 2, BLOCK_SEEDS)


@pytest.mark.parametrize("block_seeds", [1, 4, 100, None])
def test_store__the_block_size_changes_nothing(tmp_path: Path, memory: xr.Dataset, block_seeds: int | None) -> None:
    assert_same_bits(run(tmp_path / "out.zarr", block_seeds=block_seeds), memory)


def test_store__token_engine(tmp_path: Path) -> None:
    fleet = sweep.Fleet.fixed([1.0, 0.3, 1.2])
    settings = {"policy": ["round_robin", "least_load(in_service_weight=0.5)"], "engine": "token_step", "seed": 5}
    stored = sweep.run(sweep.Workload.dplb_burst(), fleet, **settings, store=tmp_path / "a.zarr", block_seeds=2)
    assert_same_bits(stored, sweep.run(sweep.Workload.dplb_burst(), fleet, **settings))


def test_store__a_path_with_spaces_and_other_letters(tmp_path: Path, memory: xr.Dataset) -> None:
    folder = tmp_path / "Läufe für später"
    folder.mkdir()
    assert_same_bits(run(folder / "größe 1, π.zarr"), memory)
    assert_same_bits(sweep.open(folder / "größe 1, π.zarr"), memory)


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_store__a_local_url_is_a_path(tmp_path: Path, memory: xr.Dataset, scheme: str) -> None:
    assert_same_bits(run(f"{scheme}://{tmp_path}/out.zarr"), memory)
    assert_same_bits(sweep.open(f"{scheme}://{tmp_path}/out.zarr"), memory)
    assert stores.verify(f"{scheme}://{tmp_path}/out.zarr") == []
    assert (tmp_path / "out.zarr" / "grid.json").exists()


def test_objects__where_the_file_system_has_folders(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    kept = _Objects(f"local://{tmp_path}/new/out.zarr")
    kept.create("grid.json", b"one")
    kept.create("grid.json", b"two")
    kept.write({"a/0": b"first", "b/0": b"second"}, {"blocks/0": b"third"})
    assert [kept.read(name) for name in ("grid.json", "a/0", "b/0", "blocks/0")] == [
        b"one",
        b"first",
        b"second",
        b"third",
    ]


def test_store__an_empty_stream_keeps_its_nan(tmp_path: Path) -> None:
    nothing = sweep.Workload.fixed(sweep.Requests.from_records([]))
    settings = {"policy": POLICIES, "seed": 3}
    fleet = sweep.Fleet.fixed([1.0, 2.0])
    stored = sweep.run(nothing, fleet, **settings, store=tmp_path / "a.zarr")
    assert_same_bits(stored, sweep.run(nothing, fleet, **settings))
    assert stored.mean_queue_wait_ms.isnull().all()


def test_open__ten_to_the_six_cells_within_a_second(tmp_path: Path) -> None:
    path = tmp_path / "large.zarr"
    work = sweep.Workload.poisson(requests=1, utilisation=0.5, replicas=1)
    sweep.run(work, sweep.Fleet.fixed([1.0]), policy="queue_aware", slack=range(1_000), seed=1_000, store=path)
    begin = time.process_time()
    ds = sweep.open(path)
    assert time.process_time() - begin < 1.0
    assert ds.request_count.size == 1_000_000


def test_chunks__are_what_the_codecs_write() -> None:
    values = np.random.default_rng(1).normal(size=(1, 5, 7)).repeat(3, axis=1)
    crc, blosc = CRC32(), Blosc(cname="lz4", clevel=1, shuffle=Blosc.SHUFFLE)
    assert chunks.encode(values) == bytes(crc.encode(blosc.encode(values)))
    assert chunks.encode(values, compressed=False) == bytes(crc.encode(values))
    turned = values.transpose(0, 2, 1)
    assert chunks.encode(turned) == chunks.encode(turned.copy())


def test_write__what_has_a_name_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure at any moment finds no name whose content was not synced before, and the record comes last."""
    synced: list[str] = []
    named: list[str] = []
    fsync, rename, link = os.fsync, os.replace, os.link

    def watched_fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def watched(make: Any) -> Any:
        def call(source: str, target: Any) -> None:
            assert source in synced
            named.append(os.fspath(target))
            make(source, target)

        return call

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched(rename))
    monkeypatch.setattr(os, "link", watched(link))
    store = tmp_path / "out.zarr"
    run(store, seed=3, policy="queue_aware", workers=1)
    assert named[0] == str(store / "grid.json")
    assert Path(named[-1]).parent == store / "blocks"
    assert synced[-1] == str(store / "blocks")
    assert set(named) >= {str(path) for path in store.rglob("*") if path.is_file()}


# --- Resumed -----------------------------------------------------------------------------------------------------


def test_resume__computes_only_what_is_missing(store: Path, computed: Computed, memory: xr.Dataset) -> None:
    before = records(store)
    forget(store)
    gone = before - records(store)
    assert_same_bits(run(store), memory)
    assert {block_store._record(block).partition("/")[2] for block in computed.blocks} == gone
    assert records(store) == before


def test_resume__nothing_when_complete(store: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_compute", lambda *_, **__: pytest.fail("computed"))
    run(store)
    assert computed.blocks == []


def test_resume__block_boundaries_are_those_of_the_store(store: Path, computed: Computed, memory: xr.Dataset) -> None:
    forget(store)
    assert_same_bits(run(store, block_seeds=None), memory)
    assert {block.shape[2] for block in computed.blocks} <= {3, 2}
    with pytest.raises(sweep.InputError, match=r"block_seeds is 3 in the store .* and 4 here"):
        run(store, block_seeds=4)


def test_resume__after_a_torn_block(store: Path, memory: xr.Dataset) -> None:
    """Some chunks of a block written, others not, no record: as a kill leaves it."""
    forget(store, "2.0.0.1-3.2.3")
    (store / "p99_queue_wait_ms" / "2.0.0.0.1").unlink()
    (store / "load_variance" / "2.0.0.0.1").write_bytes(b"")
    assert_same_bits(run(store), memory)


def test_resume__after_a_begin_that_was_cut_short(store: Path, memory: xr.Dataset) -> None:
    """grid.json is written first, so a store without its labels is one that was just begun."""
    for name in (".zmetadata", ".zattrs", "seed/0", "slack/.zarray"):
        (store / name).unlink()
    assert_same_bits(run(store), memory)


@pytest.mark.parametrize("complete", [False, True])
def test_start__removes_temporaries_of_the_dead_only(store: Path, complete: bool) -> None:
    dead = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    left = {"dead": _owner(dead.pid), "alive": _owner(os.getpid()), "elsewhere": "another-host-7-1"}
    dead.communicate(b"\n")
    for owner in left.values():
        (store / "tmp" / f"{owner}-0123456789abcdef").touch()
    if not complete:
        forget(store)
    run(store)
    assert {path.name.rpartition("-")[0] for path in (store / "tmp").iterdir()} == {left["alive"], left["elsewhere"]}


# --- While it is incomplete --------------------------------------------------------------------------------------


def test_open__incomplete(store: Path, memory: xr.Dataset) -> None:
    forget(store, "0.0.0.0-3.2.3", "2.0.0.3-3.2.2")
    found = sweep.open(store)
    want = np.ones((3, SEEDS), bool)
    want[0, :3] = want[2, 9:] = False
    assert found.computed.dims == ("policy", "seed")
    assert (found.computed.values == want).all()
    there = found.computed.drop_vars("computed")
    for name in memory.data_vars:
        # The chunks of the two blocks still lie there; without a record they do not count.
        assert found[name].dtype == np.float64
        xr.testing.assert_equal(found[name].drop_vars("computed").load(), memory[name].where(there))
    some = found.replica_requests.isel(policy=[2, 0], slack=1, seed=slice(2, 10, 3))
    xr.testing.assert_equal(
        some.drop_vars("computed").load(),
        memory.replica_requests.where(there).isel(policy=[2, 0], slack=1, seed=slice(2, 10, 3)),
    )
    assert "computed" not in run(store).coords


def test_open__nothing_computed_yet(store: Path) -> None:
    forget(store, *records(store))
    assert not sweep.open(store).computed.any()
    assert sweep.open(store).request_count.isnull().all()


def test_open__a_missing_store(tmp_path: Path) -> None:
    with pytest.raises(sweep.InputError, match="There is no Dataset at"):
        sweep.open(tmp_path / "no.zarr")


# --- Extended ----------------------------------------------------------------------------------------------------

MORE: dict[str, Any] = {
    "seed": 16,
    "policy": (*POLICIES, "always_last"),
    "slack": (*SLACK, 5.0, 15.0, 30.0, 40.0),
    "levels": (*LEVELS, 0.2),
}


@pytest.mark.parametrize("axis", MORE)
def test_extend__one_axis(store: Path, computed: Computed, axis: str) -> None:
    fresh = run(**{axis: MORE[axis]})
    assert_same_bits(run(store, extend=True, **{axis: MORE[axis]}), fresh)
    assert_same_bits(xr.open_zarr(store), fresh)
    old, new = len(POLICIES) * len(SLACK) * len(LEVELS) * SEEDS, fresh.request_count.isel(utilisation=0).size
    assert computed.cells() == new - old
    assert stores.verify(store) == []


def test_extend__all_axes_in_turn(store: Path, computed: Computed) -> None:
    """Every partial block of the lattice is met: the last seeds, slacks and heterogeneities of each extension."""
    before = run(store)
    cells = before.request_count.isel(utilisation=0).size
    asked: dict[str, Any] = {}
    for axis, value in MORE.items():
        asked[axis] = value
        run(store, extend=True, **asked)
    asked |= {"seed": 21, "slack": (*MORE["slack"], 50.0)}
    fresh = run(**asked)
    assert_same_bits(run(store, extend=True, **asked), fresh)
    assert computed.cells() == fresh.request_count.isel(utilisation=0).size - cells
    assert_same_bits(run(store, **asked), fresh)


def test_extend__by_a_policy_that_brings_a_variable(tmp_path: Path) -> None:
    work = sweep.Workload.poisson(requests=40, utilisation=0.9, replicas=2, sessions=5, prefixes=5)
    store = tmp_path / "out.zarr"

    def grow(policies: list[str], seeds: int, **options: Any) -> xr.Dataset:
        fleet = sweep.Fleet.fixed([1.0, 1.0])
        return sweep.run(work, fleet, policy=policies, seed=seeds, store=store, block_seeds=10, **options)

    grow(["round_robin"], 4)
    grow(["round_robin", "migrate"], 4, extend=True)
    assert stores.verify(store) == []
    found = grow(["round_robin", "migrate"], 8, extend=True)
    assert stores.verify(store) == []
    assert found.migrations.sel(policy="round_robin").sum() == 0 < found.migrations.sel(policy="migrate").sum()
    assert_same_bits(found, sweep.run(work, sweep.Fleet.fixed([1.0, 1.0]), policy=["round_robin", "migrate"], seed=8))


def test_extend__what_is_added_alone_will_do(store: Path) -> None:
    whole = run(seed=13)
    assert_same_bits(run(store, extend=True, seed=[11, 12]), whole)
    assert_same_bits(run(store, extend=True, seed=[11, 12]), whole)


def test_extend__a_cut_in_the_middle_is_gone_on_with(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for name in ("label", "write"):
        with monkeypatch.context() as patched:
            patched.setattr(block_store.BlockStore, name, cut)
            with pytest.raises(KeyboardInterrupt):
                run(store, extend=True, seed=14)
            # Threads that an interrupt leaves behind still end their task, and must find it cut too.
            for thread in threading.enumerate():
                if thread.name.startswith("sweep"):
                    thread.join()
        assert sum(line.startswith("incomplete: ") for line in stores.verify(store)) == 3
    found = sweep.open(store)
    assert found.computed.values[:, :9].all() and not found.computed.values[:, 11:].any()
    xr.testing.assert_equal(
        found.mean_latency_ms.isel(seed=slice(0, 11)).drop_vars("computed").load(), run().mean_latency_ms
    )
    assert_same_bits(run(store, seed=14), run(seed=14))


@pytest.mark.parametrize("moment", ["missing", "label"])
def test_extend__by_two_at_once_with_different_seeds_mixes_nothing(
    store: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Both have read the same grid. The other one extends it at a moment of this one: one of them must give way."""
    mine, others = [*range(SEEDS), 60, 61], [*range(SEEDS), 70, 71]
    before = lifecycle.read(block_store.BlockStore(str(store)))
    original = getattr(block_store.BlockStore, moment)
    said: list[str] = []

    def overtaken(*arguments: Any) -> Any:
        found = original(*arguments)
        with monkeypatch.context() as patched:
            patched.setattr(block_store.BlockStore, moment, original)
            patched.setattr(lifecycle, "read", lambda kept: before)
            try:
                run(store, extend=True, seed=others)
            except sweep.InputError as error:
                said.append(str(error))
        monkeypatch.setattr(block_store.BlockStore, moment, original)
        return found

    monkeypatch.setattr(block_store.BlockStore, moment, overtaken)
    try:
        run(store, extend=True, seed=mine)
    except sweep.InputError as error:
        said.append(str(error))
    monkeypatch.undo()
    assert len(said) == 1 and "was extended by another process meanwhile" in said[0]
    kept = mine if moment == "label" else others
    assert_same_bits(run(store, seed=kept), run(seed=kept))
    assert stores.verify(store) == []


def test_extend__while_an_older_command_computes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one finishes and extends the store while this one computes: its block is another one by then."""
    simulate = work_module.simulate
    forget(store, "0.0.0.3-3.2.2")

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(work_module, "simulate", simulate)
        run(store)
        run(store, extend=True, seed=13)
        return simulate(*arguments)

    monkeypatch.setattr(work_module, "simulate", overtaken)
    with pytest.raises(sweep.InputError, match="was extended by another process meanwhile"):
        run(store, workers=1)
    assert stores.verify(store) == []
    assert_same_bits(sweep.open(store), run(seed=13))


def test_extend__killed_before_anything_else_was_written(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was decided stands: the same command goes on, and no other one can extend the store before."""

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(block_store.BlockStore, "label", killed)
        with pytest.raises(KeyboardInterrupt):
            run(store, extend=True, seed=14)
    with pytest.raises(sweep.InputError, match="misses 6 blocks; finish it with its own command, then extend it"):
        run(store, extend=True, seed=[70, 71])
    assert_same_bits(run(store, extend=True, seed=14), run(seed=14))


def test_objects__of_two_that_begin_at_once_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    first, second = files_at("memory://begun.zarr"), files_at("memory://begun.zarr")
    looked = iter([False])
    monkeypatch.setattr(second, "exists", lambda name: next(looked, True))
    first.create("grid.json", b"one")
    second.create("grid.json", b"two")
    assert second.read("grid.json") == b"one"


def test_extend__only_a_finished_store(store: Path, tmp_path: Path) -> None:
    forget(store)
    with pytest.raises(sweep.InputError, match="misses 6 blocks; finish it"):
        run(store, extend=True, seed=20)
    with pytest.raises(sweep.InputError, match="There is no store at"):
        run(tmp_path / "new.zarr", extend=True)
    assert not (tmp_path / "new.zarr").exists()


def test_extend__other_parts_must_be_the_same(store: Path) -> None:
    with pytest.raises(sweep.InputError, match="workload requests is 60 in the store and 61 here"):
        run(store, extend=True, seed=20, workload=work(61))
    with pytest.raises(sweep.InputError, match=r"speeds\.0\.5 is \[.*\] in the store and \[.*\] here"):
        fleet = sweep.Fleet.one_slow(4, [0.0, 0.5], constant_capacity=False)
        sweep.run(work(), fleet, policy=POLICIES, slack=SLACK, seed=20, store=store, extend=True)


class Killed(BaseException):
    """The end of a process, at a moment that a test chooses."""


def extend_until(count: int, store: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> bool:
    """Extend a store until so many files are in their places; return whether that was in the middle."""
    named = 0

    def watched(make: Any) -> Any:
        def call(source: str, target: Any) -> None:
            nonlocal named
            if named == count:
                raise Killed
            named += 1
            make(source, target)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", watched(os.replace))
        patched.setattr(os, "link", watched(os.link))
        # The labels alone: blocks are for other tests.
        patched.setattr(runner, "fill", lambda *_: None)
        try:
            run(store, extend=True, **more)
        except Killed:
            return True
    return False


def test_extend__cut_at_any_moment_leaves_a_store_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sweep.open` shows the old grid, the new one or says what to do; plain xarray shows the old one for long."""
    small: dict[str, Any] = {"policy": POLICIES[:1], "slack": SLACK[:1], "seed": 4, "levels": LEVELS[:1]}
    large: dict[str, Any] = {"policy": ["round_robin", "least_load"], "slack": SLACK, "seed": 6, "levels": LEVELS}
    base, store = tmp_path / "base.zarr", tmp_path / "out.zarr"
    before = run(base, **small).load()
    files, said, old, new = 0, 0, 0, 0
    while True:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(base, store)
        if not extend_until(files, store, monkeypatch, **large):
            break
        try:
            found = sweep.open(store).load()
        except sweep.InputError as error:
            assert "just being begun or extended, or was cut short while it was; run its command again" in str(error)
            said += 1
        else:
            assert_same_bits(found, before)
            old += 1
        if new == 0:
            try:
                assert_same_bits(xr.open_zarr(store), before)
            except Exception:  # what xarray says of coordinates of two lengths
                new = files
        # Metadata come in the middle, and coordinates at the end.
        files += 1 if files < 3 else 20 if files < 60 else 2
    assert old >= 2 and said >= 5
    assert new > 0.8 * files
    found = sweep.open(store)
    assert found.seed.values.tolist() == [0, 1, 2, 3, 4, 5] and not found.computed.sel(policy="least_load").any()
    assert_same_bits(run(store, **large), run(**large))


def test_labels__of_an_older_command_do_not_stay(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one runs the command of the finished store, another one begins and ends an extension."""
    label = block_store.BlockStore.label

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(block_store.BlockStore, "label", label)
        run(store, extend=True, seed=14)
        label(*arguments)

    monkeypatch.setattr(block_store.BlockStore, "label", late)
    with pytest.raises(sweep.InputError, match="was extended by another process meanwhile"):
        run(store)
    assert stores.verify(store) == []
    assert_same_bits(sweep.open(store), run(seed=14))


def test_labels__of_an_older_command_are_put_right_at_the_end(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older command writes its labels over those of an extension that is still computing, and dies."""
    simulate = work_module.simulate
    kept = block_store.BlockStore(str(store))
    older = lifecycle.opened(kept)

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(work_module, "simulate", simulate)
        kept.label(*older)
        assert sweep.open(store).sizes["seed"] == SEEDS
        return simulate(*arguments)

    monkeypatch.setattr(work_module, "simulate", overtaken)
    assert_same_bits(run(store, extend=True, seed=14, workers=1), run(seed=14))
    assert stores.verify(store) == []


# --- Refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 12}, r"seeds is \[0, 1, 2, ... 10\] \(11 values\) in the store and .*\(12 values\) here.*extend"),
        ({"slack": (0.0, 10.0)}, r"slack is \[0.0, 10.0, 20.0\] in the store and \[0.0, 10.0\] here"),
        ({"policy": POLICIES[:2]}, r"policies is \[round_robin, queue_aware, locality_aware\] in the store and"),
        ({"policy": POLICIES[::-1]}, r"policies is .* and \[locality_aware, queue_aware, round_robin\] here"),
        ({"levels": (0.0, 0.4)}, r"heterogeneity is \[0.0, 0.5\] in the store and \[0.0, 0.4\] here"),
        ({"warmup": 3}, r"settings\.warmup is 0 in the store and 3 here"),
        ({"slo_ms": 5.0}, r"settings\.slo_ms is none in the store and 5.0 here"),
        ({"workload": work(mean_service_ms=9.0)}, r"workload mean_service_ms is 10.0 in the store and 9.0 here"),
        ({"workload": work(utilisation=0.5)}, r"workload utilisation is \[0.5, 0.8\] in the store and 0.5 here"),
    ],
)
def test_refuse__another_grid(store: Path, changes: dict[str, Any], says: str) -> None:
    before = records(store)
    with pytest.raises(sweep.InputError, match=says):
        run(store, **changes)
    assert records(store) == before


def test_refuse__another_trace(tmp_path: Path) -> None:
    def go(service_ms: float) -> None:
        requests = sweep.Requests.from_arrays(arrival_ms=[0.0, 1.0], service_ms=[1.0, service_ms])
        workload = sweep.Workload.fixed(requests)
        sweep.run(workload, sweep.Fleet.fixed([1.0]), policy="queue_aware", seed=1, store=tmp_path / "out.zarr")

    go(1.0)
    with pytest.raises(sweep.InputError, match="holds another sweep: workload requests"):
        go(2.0)


def test_refuse__other_code(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = provenance.code_hash()
    for module in (grid_file, runner):
        monkeypatch.setattr(module, "code_hash", lambda: "0123456789abcdef")
    with pytest.raises(sweep.InputError, match=f"code is {old} in the store and 0123456789abcdef here.*sources"):
        run(store)


def test_refuse__a_rule_that_was_changed(tmp_path: Path) -> None:
    def go(to: int) -> None:
        def constant(view: Any, request: Any, parameters: Any) -> Any:
            return to

        with rules.registered(("constant", constant, {})):
            run(tmp_path / "out.zarr", policy=["constant"], seed=2)

    go(1)
    go(1)
    with pytest.raises(sweep.InputError, match=r"rules\.constant is \w+ in the store and \w+ here"):
        go(2)


def test_refuse__a_foreign_folder(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.zarr"
    foreign.mkdir()
    run(foreign)  # an empty folder is nobody's
    other = tmp_path / "written.zarr"
    sweep.write(run(), other)
    before = sorted(path.name for path in other.iterdir())
    with pytest.raises(sweep.InputError, match="is not a store of sweep; remove it or choose another path"):
        run(other)
    assert sorted(path.name for path in other.iterdir()) == before
    (tmp_path / "file.zarr").touch()
    with pytest.raises(sweep.InputError, match="is a file"):
        run(tmp_path / "file.zarr")
    with pytest.raises(sweep.InputError, match=r"must end in \.zarr"):
        run(tmp_path / "out.nc")
    with pytest.raises(sweep.InputError, match="does not exist; create it first"):
        run(tmp_path / "no" / "out.zarr")


def test_warn__another_machine(store: Path, memory: xr.Dataset) -> None:
    content = json.loads((store / "grid.json").read_text())
    content["machine"]["numpy"] = "1.0"
    (store / "grid.json").write_text(json.dumps(content))
    with pytest.warns(UserWarning, match=r"was begun with numpy '1\.0', this is"):
        assert_same_bits(run(store), memory)


# --- Verified and repaired ---------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_verify__names_what_is_damaged_and_missing(store: Path) -> None:
    assert stores.verify(store) == []
    flip(store / "p99_queue_wait_ms" / "0.0.0.0.1")
    truncated = store / "replica_requests" / "1.0.0.0.2.0"
    truncated.write_bytes(truncated.read_bytes()[:40])
    (store / "reason_count" / "2.0.0.0.0.0").unlink()
    forget(store, "2.0.0.3-3.2.2")
    found = stores.verify(store)
    assert [line.partition(" (")[0] for line in sorted(found)] == [
        "damaged: locality_aware, seed 0 to 2: the chunk reason_count/2.0.0.0.0.0 is gone",
        "damaged: queue_aware, seed 6 to 8: the chunk replica_requests/1.0.0.0.2.0 is damaged",
        "damaged: round_robin, seed 3 to 5: the chunk p99_queue_wait_ms/0.0.0.0.1 is damaged",
        "missing: locality_aware, seed 9 to 10",
    ]


def test_verify__every_byte_of_a_chunk_counts(store: Path) -> None:
    path = store / "mean_latency_ms" / "0.0.0.0.0"
    whole = path.read_bytes()
    for position in range(0, len(whole), 23):
        content = bytearray(whole)
        content[position] ^= 4
        path.write_bytes(content)
        with pytest.raises(RuntimeError, match="crc32"), xr.open_zarr(store) as found:
            found.mean_latency_ms.load()


def test_verify__a_record_that_is_damaged(store: Path, memory: xr.Dataset) -> None:
    (store / "blocks" / "0.0.0.0-3.2.3").write_text("")
    (store / "blocks" / "2.0.0.3-3.2.2").write_text('{"requests": 3}')
    assert [line.partition(" (")[0] for line in sorted(stores.verify(store))] == [
        "damaged: locality_aware, seed 9 to 10: the record blocks/2.0.0.3-3.2.2 is damaged",
        "damaged: round_robin, seed 0 to 2: the record blocks/0.0.0.0-3.2.3 is damaged",
    ]
    assert stores.status(store).complete
    sweep.repair(store)
    assert stores.verify(store) == []
    assert_same_bits(sweep.open(store), memory)


def test_blocks__files_of_other_programs_are_none(store: Path, memory: xr.Dataset) -> None:
    for name in (".DS_Store", ".nfs0000000001", "notes.txt", "0.0.0.0-3.2.3.bak", "1.2-3"):
        (store / "blocks" / name).touch()
    assert stores.status(store).complete
    assert stores.done_blocks(store) == 12
    assert stores.verify(store) == []
    assert_same_bits(sweep.open(store), memory)
    assert_same_bits(run(store), memory)


@pytest.mark.parametrize(
    ("content", "says"), [("{}", "it says nothing of 'code'"), ("[]", "it holds no object"), ('{"code": "', "")]
)
def test_grid_file__that_is_damaged(store: Path, content: str, says: str) -> None:
    (store / "grid.json").write_text(content)
    for ask in (stores.status, stores.verify, sweep.open, run):
        with pytest.raises(sweep.InputError, match=rf"The file grid\.json of the store .* is damaged: {says}"):
            ask(store)


def test_verify__after_the_code_has_changed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_file, "code_hash", lambda: "0123456789abcdef")
    assert stores.verify(store) == []
    flip(store / "p99_queue_wait_ms" / "0.0.0.0.1")
    assert len(stores.verify(store)) == 1
    with pytest.raises(sweep.InputError, match=r"code is \w+ in the store and 0123456789abcdef here"):
        sweep.repair(store)


def test_verify__a_rule_that_is_unknown_here(tmp_path: Path) -> None:
    store = tmp_path / "out.zarr"
    policies = ["round_robin", "heavy", "heavy(weight=2)"]
    with rules.registered(("heavy", always_last, {"parameters": {"weight": 1.0}})):
        memory = run(store, policy=policies).load()
    assert stores.verify(store) == []
    assert_same_bits(sweep.open(store), memory)
    flip(store / "reason_count" / "2.0.0.0.1.0")
    with pytest.raises(sweep.InputError, match="Unknown policy 'heavy'"):
        sweep.repair(store)
    line = [sys.executable, "-m", "sweep", "status", str(store), "--verify"]
    root = Path(__file__).parents[1]
    found = subprocess.run(line, capture_output=True, text=True, cwd=root, timeout=120, check=False)
    assert (found.returncode, found.stderr) == (1, "")
    assert found.stdout.startswith("damaged: heavy(weight=2), seed 3 to 5: the chunk reason_count/2.0.0.0.1.0 is damag")


def test_verify__labels(store: Path) -> None:
    flip(store / "slack" / "0")
    assert stores.verify(store) == ["damaged: the metadata or the coordinates"]
    sweep.repair(store)
    assert stores.verify(store) == []


def test_repair__computes_the_damaged_and_the_missing(store: Path, computed: Computed, memory: xr.Dataset) -> None:
    flip(store / "p99_queue_wait_ms" / "0.0.0.0.1")
    forget(store, "2.0.0.3-3.2.2")
    sweep.repair(store)
    assert sorted((block.policy, block.place[2]) for block in computed.blocks) == [(0, 1), (2, 3)]
    assert stores.verify(store) == []
    assert_same_bits(sweep.open(store), memory)


def test_repair__of_a_block_that_was_extended(store: Path) -> None:
    run(store, extend=True, seed=14)
    flip(store / "p99_queue_wait_ms" / "0.0.0.0.3")
    sweep.repair(store)
    assert_same_bits(sweep.open(store), run(seed=14))


def test_extend__over_a_damaged_end_says_so(store: Path) -> None:
    flip(store / "p99_queue_wait_ms" / "0.0.0.0.3")
    with pytest.raises(
        sweep.errors.BlockError,
        match=r"seed 9 to 11.*chunk p99_queue_wait_ms/0\.0\.0\.0\.3 is damaged.*the same command goes on",
    ):
        run(store, extend=True, seed=14)
    sweep.repair(store)
    assert_same_bits(sweep.open(store), run(seed=14))


def test_repair__needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(sweep.InputError, match="There is no store of sweep at"):
        sweep.repair(tmp_path / "no.zarr")


# --- How far it is -----------------------------------------------------------------------------------------------


def test_status__counts_blocks_and_simulated_requests(store: Path) -> None:
    now = stores.status(store)
    # Two utilisations; round_robin and queue_aware are simulated for one slack.
    requests = 60 * 2 * len(LEVELS) * SEEDS * (1 + 1 + len(SLACK))
    assert (now.blocks, now.done, now.requests, now.requests_done) == (12, 12, requests, requests)
    assert now.complete and now.seconds_left == 0
    assert now.requests_per_s > 0
    forget(store, "2.0.0.0-3.2.3")
    now = stores.status(store)
    assert (now.done, now.requests - now.requests_done) == (11, 60 * 2 * len(LEVELS) * 3 * len(SLACK))
    assert now.seconds_left == pytest.approx((now.requests - now.requests_done) / now.requests_per_s)


def test_status__the_rate_is_that_of_the_last_stretch(store: Path) -> None:
    for index, path in enumerate(sorted((store / "blocks").iterdir())):
        began = 1_000.0 if index < 6 else 9_000.0
        receipt = {"requests": 100 if index < 6 else 300, "seconds": 2.0, "finished": began + 2.0 * index, "code": ""}
        path.write_text(json.dumps(receipt))
    assert stores.status(store).requests_per_s == pytest.approx(150.0)


# --- What it costs -----------------------------------------------------------------------------------------------


def test_memory__does_not_grow_with_the_result(tmp_path: Path) -> None:
    """Eight times the seeds take the same memory beside the list of the seeds and of the blocks."""
    peaks = []
    for seeds in (40, 320):
        tracemalloc.start()
        run(tmp_path / f"{seeds}.zarr", workload=work(5), seed=seeds, block_seeds=20, workers=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert sweep.open(tmp_path / "320.zarr").nbytes > 3 * 2**20
    assert peaks[1] < peaks[0] + 2**20
