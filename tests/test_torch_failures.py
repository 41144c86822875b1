"""Two CPU ranks: a run that ends well, and every way in which one can end badly. Each test ends within its bound."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from launched import START_S, TORCHRUN, VALIDATE, at_work, ends_within, pinned, ranks_of, started

from sweep.torch_runner import result

pytest.importorskip("torch")

NAME = "par-replica-load-routing_default.json"
SMALL = ("--compute-dim", "64", "--unit-ms", "1")
ALONE = (*TORCHRUN[:3], "--nproc_per_node", "1")
LONG = (*SMALL, "--repeats", "100000")
REPLAY = (
    "--mode",
    "replay",
    "--compute-dim",
    "64",
    "--requests",
    "50",
    "--policy",
    "queue_aware",
    "--repeats",
    "100000",
)


def failure_in(folder: Path) -> dict[str, object]:
    found = result.read(folder / NAME)
    assert found["decision"] == "not_compared"
    assert not list(folder.glob(".*"))
    failure: dict[str, object] = found["failure"]
    return failure


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
    assert "round_robin / least_loaded" in out
    with started(tmp_path, *TORCHRUN, *SMALL) as process:
        _, err = process.communicate(timeout=START_S)
        assert process.returncode == 1
    assert "exists and is not overwritten" in err
    assert json.loads((tmp_path / NAME).read_text()) == found


@pinned
@pytest.mark.parametrize(("victim", "run"), [(0, LONG), (1, LONG), (0, REPLAY), (1, REPLAY)])
def test_killed_rank__is_named_by_the_survivor(tmp_path, victim, run):
    with started(tmp_path, *TORCHRUN, *run, "--workload-id", "par-replica-load-routing") as process:
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


def test_hung_rank__alone_ends_by_itself(tmp_path):
    script = tmp_path / "hangs.py"
    script.write_text(
        "import time, sweep.torch_runner.makespan as m\n"
        "m.measure = lambda *rest: time.sleep(1000)\n"
        "from sweep.torch_runner.command import main\n"
        "main()\n"
    )
    with started(tmp_path, *ALONE, str(script), *SMALL, "--timeout", "20") as process:
        _, err = process.communicate(timeout=START_S)
    assert process.returncode == 1
    failure = failure_in(tmp_path)
    assert failure["rank"] == 0
    assert "hung" in str(failure["what"])
    assert err.count("Rank 0 failed: the process hung") == 1


@pinned
@pytest.mark.parametrize(
    ("where", "said"), [("plan", "hung: no sign of life for 20 s"), ("start", "did not start in time")]
)
def test_rank_that_does_not_come__is_named_after_the_timeout(tmp_path, where, said):
    script = tmp_path / "late.py"
    script.write_text(
        "import os, time, sweep.torch_runner.rank as r\n"
        "real = r.plan_for\n"
        "def late(at):\n"
        f"    if at == '{where}' and os.environ['RANK'] == '1': time.sleep(1000)\n"
        "def plan_for(*rest):\n"
        "    late('plan')\n"
        "    return real(*rest)\n"
        "r.plan_for = plan_for\n"
        "late('start')\n"
        "from sweep.torch_runner.command import main\n"
        "main()\n"
    )
    with started(tmp_path, *TORCHRUN[:-2], str(script), *SMALL, "--timeout", "20") as process:
        _, err = process.communicate(timeout=START_S)
    assert process.returncode == 1
    failure = failure_in(tmp_path)
    assert failure["rank"] == 1
    assert said in str(failure["what"])
    assert "Rank 1 failed: the process" in err


@pinned
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize(("number", "launcher"), [(signal.SIGINT, TORCHRUN), (signal.SIGTERM, VALIDATE)])
def test_signal_to_the_launcher__ends_all(tmp_path, monkeypatch, number, launcher, threads):
    # With two, numpy has threads of its own before anything of sweep runs.
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
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
def test_interrupted_while_the_ranks_import__says_one_sentence(tmp_path):
    with started(tmp_path, *VALIDATE, *LONG) as process:
        deadline = time.monotonic() + START_S
        while not (ranks := ranks_of(process)) and time.monotonic() < deadline:
            time.sleep(0.05)
        # The interpreter has started, and imports.
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        status, out, err = ends_within(process, ranks, 60)
    assert status == 130
    assert out == ""
    assert err.strip().startswith("Interrupted: ")
    assert err.strip().count("\n") == 0


@pinned
def test_failure_that_cannot_be_written__is_said_once(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with started(folder, *VALIDATE, *LONG) as process:
        ranks = at_work(process)
        folder.rmdir()
        folder.write_text("in the way")
        ranks[1].kill()
        status, _, err = ends_within(process, ranks, 40)
    assert status == 1
    assert err.count("\n") == 1
    assert err.startswith("Error: Rank 1 failed: the process died")
    assert f"The result cannot be written to '{folder / NAME}': Not a directory." in err


@pinned
def test_killed_launcher__leaves_no_rank(tmp_path):
    with started(tmp_path, *VALIDATE, *LONG) as process:
        ranks = at_work(process)
        process.kill()
        ends_within(process, ranks, 20)
    assert failure_in(tmp_path) == {"rank": None, "what": "the launcher died"}


@pinned
@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize(
    ("refuses", "slept_in", "said"),
    [
        ("plan_for", "start", "nothing matches"),
        ("plan_for", "plan_for", "nothing matches"),
        ("options", "start", "--repeats"),
        ("ranks", "start", "--ranks is 3"),
    ],
)
def test_refusal__is_said_once_whichever_rank_is_late(
    tmp_path, tmp_path_factory, monkeypatch, late, refuses, slept_in, said
):
    text = (
        "import os, time\n"
        "def sleeps(where):\n"
        f"    if where == '{slept_in}': time.sleep(3.0 * (os.environ['RANK'] == '{late}'))\n"
        "sleeps('start')\n"
        "import sweep.torch_runner.rank as r\n"
        "from sweep.errors import InputError\n"
        "def plan_for(job, ranks):\n"
        "    sleeps('plan_for')\n"
        "    raise InputError('nothing matches')\n"
        "r.plan_for = plan_for\n"
        "from sweep.torch_runner.command import main\n"
        "main()\n"
    )
    script = tmp_path / "refuses.py"
    script.write_text(text)
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    wrong = {"options": ["--repeats", "0"], "ranks": ["--ranks", "3"]}.get(refuses, [])
    with started(tmp_path, *TORCHRUN[:-2], str(script), *wrong) as process:
        _, err = process.communicate(timeout=START_S)
    assert process.returncode == 1
    assert err.count(f"Error: {said}") == 1
    script.unlink()
    assert not list(tmp_path.iterdir())
    assert not list(temporary.glob("sweep-torch-*.board"))


def test_force__a_failure_replaces_an_earlier_result_from_the_same_port(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        "import os, sweep.torch_runner.makespan as m\n"
        "def measure(*rest): raise MemoryError('none left')\n"
        "if os.environ.get('FAILS'): m.measure = measure\n"
        "from sweep.torch_runner.command import main\n"
        "main()\n"
    )
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    # Without --standalone the id of the run is "none".
    line = [*ALONE[:2], *ALONE[3:], "--master_port", port, str(script), *SMALL, "--repeats", "1", "--force"]
    for fails, status in (("", 0), ("1", 1)):
        with started(tmp_path, *line, FAILS=fails) as process:
            _, err = process.communicate(timeout=START_S)
            assert process.returncode == status, err
    assert failure_in(tmp_path) == {"rank": 0, "what": "MemoryError: none left"}


@pinned
def test_result_of_another_run_in_between__is_refused_once_and_kept(tmp_path):
    script = tmp_path / "between.py"
    script.write_text(
        "import os, sweep.torch_runner.rank as r\n"
        "from sweep.torch_runner.report import Report\n"
        "real = r.plan_for\n"
        "def plan_for(job, ranks):\n"
        "    if os.environ['RANK'] == '1': job.result_path.write_text('{}')\n"
        "    return real(job, ranks)\n"
        "check = Report.refuse_if_taken\n"
        "def late(report):\n"
        "    if os.environ['RANK'] == '1': report.path.write_text('{}')\n"
        "    check(report)\n"
        "r.plan_for, Report.refuse_if_taken = plan_for, late\n"
        "from sweep.torch_runner.command import main\n"
        "main()\n"
    )
    # Rank 0 is slower to check than rank 1 is to plan, or quicker: it refuses before the ranks meet or at the end.
    with started(tmp_path, *TORCHRUN[:-2], str(script), *SMALL, "--repeats", "1") as process:
        _, err = process.communicate(timeout=START_S)
    assert process.returncode == 1
    assert err.count("exists and is not overwritten") == 1
    assert (tmp_path / NAME).read_text() == "{}"


@pinned
def test_ranks_that_read_different_streams__refuse(tmp_path):
    script = tmp_path / "grows.py"
    trace = tmp_path / "trace.csv"
    trace.write_text("request_id,arrival_ms,service_ms\n" + "".join(f"{i},{5 * i},30\n" for i in range(20)))
    script.write_text(
        "import os, sweep.torch_runner.rank as r\n"
        "real = r.plan_for\n"
        "def plan_for(job, ranks):\n"
        "    if os.environ['RANK'] == '1':\n"
        "        object.__setattr__(job, 'trace', job.trace.with_name('grown.csv'))\n"
        "        job.trace.write_text(job.trace.with_name('trace.csv').read_text() + '20,100,30\\n')\n"
        "    return real(job, ranks)\n"
        "r.plan_for = plan_for\n"
        "from sweep.torch_runner.command import main\n"
        "main()\n"
    )
    line = (*TORCHRUN[:-2], str(script), "--trace", str(trace), "--compute-dim", "64", "--repeats", "1")
    with started(tmp_path, *line, "--policy", "round_robin") as process:
        _, err = process.communicate(timeout=START_S)
    assert process.returncode == 1
    assert err.count("Error: Rank 1 has another plan than rank 0") == 1
    assert not list(tmp_path.glob("*.json"))


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


@pinned
@pytest.mark.parametrize(("options", "predicted"), [((), 26 / 17), (("--concurrent-sharing",), 1.0)])
def test_ranks_that_share_a_core__in_turn_or_at_once(tmp_path, options, predicted):
    with started(
        tmp_path, *VALIDATE, *SMALL, *options, "--repeats", "3", cores={min(os.sched_getaffinity(0))}
    ) as process:
        _, err = process.communicate(timeout=START_S)
        assert process.returncode == 0, err
    found = result.read(tmp_path / NAME)
    assert found["hardware"]["ranks_share_device"] is True
    pair = found["prediction"]["pairs"][0]
    assert pair["predicted"] == pytest.approx(predicted, rel=0.02)
    if options:
        assert found["decision"] != "confirmed"


@pinned
@pytest.mark.parametrize(
    ("gpus", "options", "level", "backend"),
    [
        (1, (), "single_gpu_mechanism", "gloo"),
        (1, ("--speeds", "1,0.5"), "single_gpu_mechanism", "gloo"),
        (1, ("--concurrent-sharing",), "single_gpu_mechanism", "gloo"),
        (1, REPLAY[:-2], "single_gpu_mechanism", "gloo"),
        (2, (), "real_multi_gpu_mechanism_benchmark", "nccl"),
        (2, REPLAY[:-2], "real_multi_gpu_mechanism_benchmark", "nccl"),
    ],
)
def test_gpus__as_far_as_a_machine_without_them_can_tell(tmp_path, gpus, options, level, backend):
    """Everything that `.ci/gpu` does, on devices whose calls are checked and whose products the CPU does."""
    script = str(Path(__file__).parent / "fake_cuda.py")
    line = (*TORCHRUN[:-2], script, str(gpus), *SMALL[: 2 if REPLAY[0] in options else None])
    with started(tmp_path, *line, *options, "--repeats", "2", "--warmup", "1", "--label", "gpu") as process:
        _, err = process.communicate(timeout=START_S)
        assert process.returncode == 0, err
    (path,) = tmp_path.glob("*_gpu.json")
    found = result.read(path)
    assert found["environment_profile"] == "PAR-CUDA-MECHANISM"
    assert (found["evidence_level"], found["hardware"]["backend"]) == (level, backend)
    assert found["hardware"]["ranks_share_device"] is (gpus == 1)
    assert found["workload"]["dtype"] == "bfloat16"
    assert all(row["rank_cpu_ms"] is None for row in found["metrics"]["rows"])
    online = [row for row in found["metrics"]["rows"] if row.get("routing") == "online"]
    assert bool(online) is (gpus == 2 and bool(REPLAY[0] in options))
