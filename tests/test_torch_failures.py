"""Two CPU ranks: a run that ends well, and every way in which one can end badly. Each test ends within its bound."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from sweep.torch_runner import result

pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
NAME = "par-replica-load-routing_default.json"
#: For starting: three processes import torch. What is asserted starts when the ranks work.
START_S = 240
SMALL = ("--compute-dim", "64", "--unit-ms", "1")
LONG = (*SMALL, "--repeats", "100000")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "sweep.torch_runner")
VALIDATE = ("-m", "sweep", "validate")


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A launcher in a session of its own; whatever it leaves behind is killed, after the test has looked."""
    process = subprocess.Popen(
        [sys.executable, *arguments, "--output", str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for left in [*ranks_of(process), process]:
            if left.poll() is None if isinstance(left, subprocess.Popen) else left.is_running():
                left.kill()
        process.communicate()


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ranks in order, as far as they have been started."""
    found = {}
    try:
        for child in psutil.Process(process.pid).children(recursive=True):
            rank = child.environ().get("RANK")
            if rank is not None and child.status() != psutil.STATUS_ZOMBIE:
                found[int(rank)] = child
    except psutil.Error:
        return []
    return [found[rank] for rank in sorted(found)]


def at_work(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The two ranks, once both are pinned to their cores: after they have met, before the first round."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        ranks = ranks_of(process)
        if len(ranks) == 2 and all(len(rank.cpu_affinity()) == 1 for rank in ranks):
            time.sleep(2.0)
            return ranks
        time.sleep(0.2)
    raise AssertionError("the ranks did not start")


def ends_within(process: subprocess.Popen[str], ranks: list[psutil.Process], seconds: float) -> tuple[int, str, str]:
    """Status and output of a launcher that ends in time and leaves no rank behind."""
    out, err = process.communicate(timeout=seconds)
    _, alive = psutil.wait_procs(ranks, timeout=2)
    assert not alive
    return process.returncode, out, err


def failure_in(folder: Path) -> dict[str, object]:
    found = result.read(folder / NAME)
    assert found["decision"] == "not_compared"
    assert not list(folder.glob(".*"))
    failure: dict[str, object] = found["failure"]
    return failure


pinned = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores"
)


@pinned
def test_run__two_ranks_then_no_overwriting_then_reading(tmp_path):
    with started(tmp_path, *TORCHRUN, *SMALL, "--repeats", "3") as process:
        out, err = process.communicate(timeout=START_S)
        assert process.returncode == 0, err
    found = result.read(tmp_path / NAME)
    rows = found["metrics"]["rows"]
    assert [row["strategy"] for row in rows[:2]] == ["round_robin", "least_loaded"]
    assert [row["request_cost_units_per_rank"] for row in rows[:2]] == [[6, 26], [17, 15]]
    assert all(len(row["repeats"]["makespan_ms"]) == 3 for row in rows)
    assert all(len(row["rank_cpu_ms"]) == 2 for row in rows)
    assert found["prediction"]["pairs"][0]["predicted"] == pytest.approx(26 / 17, rel=0.02)
    assert found["decision"] in ("confirmed", "not_confirmed", "inconclusive")
    assert found["environment_profile"] == "PAR-CPU-MECHANISM"
    assert found["evidence_level"] == "cpu_mechanism"
    assert found["hardware"]["backend"] == "gloo"
    assert found["hardware"]["ranks_share_device"] is False
    assert found["failure"] is None
    assert "least_loaded against round_robin" in out
    with started(tmp_path, *TORCHRUN, *SMALL) as process:
        _, err = process.communicate(timeout=START_S)
        assert process.returncode == 1
    assert "exists and is not overwritten" in err
    assert json.loads((tmp_path / NAME).read_text()) == found


@pinned
@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank__is_named_by_the_survivor(tmp_path, victim):
    with started(tmp_path, *TORCHRUN, *LONG) as process:
        ranks = at_work(process)
        ranks[victim].kill()
        status, _, err = ends_within(process, ranks, 40)
    assert status == 1
    failure = failure_in(tmp_path)
    assert failure["rank"] == victim
    assert "died" in str(failure["what"])
    assert f"Rank {victim} failed: the process died" in err


@pinned
def test_hung_rank__ends_within_the_timeout(tmp_path):
    with started(tmp_path, *VALIDATE, *LONG, "--timeout", "20") as process:
        ranks = at_work(process)
        ranks[1].suspend()
        before = time.monotonic()
        status, out, err = ends_within(process, ranks, 40)
        took = time.monotonic() - before
    assert status == 1
    failure = failure_in(tmp_path)
    assert failure["rank"] == 1
    assert "hung" in str(failure["what"])
    assert took < 20 + 5
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("Error: Rank 1 failed: the process hung")


@pinned
@pytest.mark.parametrize(("number", "launcher"), [(signal.SIGINT, TORCHRUN), (signal.SIGTERM, VALIDATE)])
def test_signal_to_the_launcher__ends_all(tmp_path, number, launcher):
    with started(tmp_path, *launcher, *LONG) as process:
        ranks = at_work(process)
        process.send_signal(number)
        status, _, err = ends_within(process, ranks, 40)
    assert status != 0
    # The launcher hands on the signal that it got.
    assert failure_in(tmp_path) == {"rank": None, "what": f"stopped by {number.name}"}
    if launcher is VALIDATE:
        assert status == 130
        assert err.strip().startswith("Interrupted: ")
        assert "Traceback" not in err


@pinned
def test_killed_launcher__leaves_no_rank(tmp_path):
    with started(tmp_path, *VALIDATE, *LONG) as process:
        ranks = at_work(process)
        process.kill()
        ends_within(process, ranks, 20)
    assert failure_in(tmp_path) == {"rank": None, "what": "the launcher died"}


@pinned
def test_error_on_one_rank__is_named(tmp_path):
    fails = (
        "import os, runpy, sweep.torch_runner.makespan as m\n"
        "def measure(job, plan, group, *rest):\n"
        "    if group.place.rank == 1: raise MemoryError('none left')\n"
        "    group.barrier()\n"
        "m.measure = measure\n"
        "from sweep.torch_runner.command import main\n"
        "main()\n"
    )
    script = tmp_path / "fails.py"
    script.write_text(fails)
    with started(tmp_path, *TORCHRUN[:-2], str(script), *SMALL) as process:
        process.communicate(timeout=START_S)
        assert process.returncode == 1
    script.unlink()
    assert failure_in(tmp_path) == {"rank": 1, "what": "MemoryError: none left"}


@pinned
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--compute-dim", "8", "--products-per-unit", "1"), "its timing is noise"),
        (("--dtype", "bool"), "not a floating-point type"),
        (("--speeds", "1,1,1", "--ranks", "2"), "2 ranks and 3 speeds"),
    ],
)
def test_refusal__one_sentence_and_no_file(tmp_path, options, said):
    with started(tmp_path, *VALIDATE, *options) as process:
        out, err = process.communicate(timeout=START_S)
    assert process.returncode == 1
    assert out == ""
    assert err.count("\n") == 1
    assert said in err
    assert not list(tmp_path.iterdir())
