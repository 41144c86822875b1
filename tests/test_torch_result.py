"""The torch runner without torch: its plan, its options, its decision and its file."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from measured_runs import CPU, document

from sweep.errors import InputError
from sweep.intervals import t_interval
from sweep.torch_runner import command, decision, launch, makespan, result
from sweep.torch_runner.devices import Device
from sweep.torch_runner.group import Place
from sweep.torch_runner.job import Job
from sweep.torch_runner.makespan import Timings
from sweep.torch_runner.plan import plan_makespan
from sweep.torch_runner.report import Report, text_of
from sweep.torch_runner.watch import LEAVING, PLANNING, WAITING, WORKING, Board, Failure, Watch
from sweep.torch_runner.work import Elapsed, Unit, calibrated_unit

ROOT = Path(__file__).parents[1]


# --- the plan ---------------------------------------------------------------------------------------------


def test_plan__published_assignment():
    plan = plan_makespan(Job())
    assert plan.ranks == 2
    first, second = plan.assignments[:2]
    assert (first.strategy, second.strategy) == ("round_robin", "least_loaded")
    assert first.units(2) == [6, 26]
    assert second.units(2) == [17, 15]
    assert plan.makespan_units(first) / plan.makespan_units(second) == pytest.approx(26 / 17)


def test_plan__other_policies_follow_and_none_that_needs_locality():
    strategies = [assignment.strategy for assignment in plan_makespan(Job()).assignments]
    # All of the catalogue that neither a session nor a prefix, which the requests lack, can move.
    assert strategies[2:] == [
        "queue_aware",
        "least_load",
        "random",
        "weighted_random",
        "power_of_d",
        "weighted_round_robin",
        "shortest_expected_delay",
    ]
    chosen = plan_makespan(Job(policy=("locality_aware", "round_robin"))).assignments
    assert [assignment.strategy for assignment in chosen] == ["round_robin", "least_loaded", "locality_aware"]


def test_plan__slower_rank_repeats_its_work():
    plan = plan_makespan(Job(speeds=(4.0, 2.0)))
    assert plan.speeds == (1.0, 0.5)
    assert plan.assignments[0].products(1, 10, 0.5) == [160, 140, 120, 100]
    assert plan.makespan_units(plan.assignments[0]) == 52


def test_plan__three_ranks():
    plan = plan_makespan(Job(ranks=3))
    assert plan.assignments[0].units(3) == [1 + 7 + 2, 8 + 1 + 5, 2 + 6]
    assert sum(plan.assignments[1].units(3)) == 32


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ranks": 0}, "There are no ranks"),
        ({"label": "a/b"}, "becomes a file name"),
        ({"mode": "replicas"}, "Unknown mode"),
        ({"unit_ms": 1.0, "products_per_unit": 2}, "exclude each other"),
        ({"unit_ms": -1.0}, "--unit-ms must be"),
        ({"select": ("best",)}, "give it with --dataset"),
        ({"dataset": Path("x.zarr"), "slack": 3.0}, "--dataset and --slack exclude each other"),
        ({"mode": "makespan", "requests": 5}, "applies only to --mode replay"),
        ({"mode": "replay", "concurrent_sharing": True}, "applies only to --mode makespan"),
        ({"tolerance": 1.5}, "--tolerance must be"),
        ({"repeats": 0}, "--repeats must be"),
        ({"speeds": (1.0, 0.0)}, "--speeds must be"),
    ],
)
def test_job__mistakes(options, said):
    with pytest.raises(InputError, match=said):
        Job(**options)


def test_job__service_model_without_a_trace():
    found = CliRunner().invoke(command.main, ["--mode", "replay", "--base-ms", "3", "--dry-run"])
    assert (found.exit_code, found.output) == (1, "Error: --base-ms applies only to --trace.\n")


def test_job__published_spelling():
    arguments = ["--mode", "replica_routing", "--run-label", "a100", "--workload-id", "par-x", "--output", "out"]
    found = CliRunner().invoke(command.main, [*arguments, "--dry-run"])
    assert found.exit_code == 0
    assert f"Would write {Path('out') / 'par-x_a100.json'}" in found.output


def test_job__output_may_name_the_file():
    assert Job(output=Path("x/y.json")).result_path == Path("x/y.json")
    assert Job().result_path == Path("reports/torch/par-replica-load-routing_default.json")


def test_ranks_that_do_not_match_the_speeds():
    with pytest.raises(InputError, match="There are 2 ranks and 3 speeds"):
        plan_makespan(Job(ranks=2, speeds=(1.0, 1.0, 0.5)))


def test_alone__says_how_to_start_it(tmp_path):
    pytest.importorskip("torch")
    found = CliRunner().invoke(command.main, ["--output", str(tmp_path)])
    assert found.exit_code == 1
    assert "There are no ranks" in found.output
    assert not list(tmp_path.iterdir())


def test_dry_run__without_torch_gives_the_plan_and_how_to_install_it(tmp_path):
    hide = "import sys; sys.modules['torch'] = None; import importlib.util as u; find = u.find_spec; "
    hide += "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a); "
    code = hide + "from sweep.torch_runner.command import main; main()"

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(Path.home())},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout, done.stderr

    status, out, err = run("--dry-run")
    assert (status, err) == (0, "")
    assert "least_loaded" in out
    assert "17" in out
    assert "26" in out
    assert 'pip install "sweep[torch]"' in out
    assert "dry_run" in out
    status, out, err = run()
    assert (status, out) == (1, "")
    assert 'This needs torch: pip install "sweep[torch]"' in err
    status, out, _ = run("--preflight")
    assert status == 0
    assert "not installed" in out
    assert not list(tmp_path.iterdir())


# --- the unit ---------------------------------------------------------------------------------------------


def test_unit__at_least_one_product():
    assert calibrated_unit(25.0, 10.0, None) == Unit(1, 25.0, 25.0)
    assert calibrated_unit(0.6, 10.0, None).products == 17
    assert calibrated_unit(0.6, None, 1).ms == 0.6


def test_unit__too_small_to_time():
    with pytest.raises(InputError, match="its timing is noise"):
        calibrated_unit(0.002, None, 1)


def sides_tried(monkeypatch, dim, slow_first=0.0):
    """Make matrices on a device that takes 1e-5 ms per side cubed; return the sides of all that it multiplied."""
    pytest.importorskip("torch")
    from sweep.torch_runner.work import Work

    tried = []

    def timed(self, queue):
        tried.append(self.left.shape[0])
        return Elapsed(1e-5 * tried[-1] ** 3 + slow_first * (len(tried) == 1), 0.0)

    monkeypatch.setattr(Work, "timed", timed)
    Work(CPU, dim, "float32")
    return tried


def test_work__matrices_that_are_too_large_are_refused_before_they_are_made(monkeypatch):
    # 1e-5 ms * 30,000^3 = 270,000 s, told by a product of 21 ms; 3.6 GB of a matrix are never asked for.
    with pytest.raises(InputError, match=r"of 30000 x 30000 .* takes about 270000.0 s .* a smaller --compute-dim"):
        sides_tried(monkeypatch, 30_000)
    assert sides_tried(monkeypatch, 400) == [128, 256, 400]
    assert sides_tried(monkeypatch, 8) == [8]
    # What starts the library at the first product says nothing of the others.
    assert sides_tried(monkeypatch, 400, slow_first=500.0) == [128, 128, 256, 400]


# --- the decision -----------------------------------------------------------------------------------------


def spread(mean, half):
    """Five repeats with that mean and, as their t interval, that half width."""
    return t_interval(mean + half / 1.241_663_998 * np.array([-1.0, -1.0, 0.0, 1.0, 1.0]), 0.95)


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        (1.0, 0.05, "confirmed"),
        (1.0, 0.099, "confirmed"),
        (1.0, 0.2, "inconclusive"),
        (1.09, 0.05, "inconclusive"),
        (1.2, 0.05, "not_confirmed"),
        (0.8, 0.05, "not_confirmed"),
        (0.0, 0.0, "not_confirmed"),
    ],
)
def test_judge__interval_against_tolerance(mean, half, verdict):
    assert spread(1.0, 0.05).upper == pytest.approx(1.05)
    found = decision.judge(spread(mean, half), 1.0, 0.10)
    assert found.verdict == verdict
    assert bool(found.reason) == (verdict != "confirmed")


def test_judge__one_repeat_has_no_interval():
    found = decision.judge(t_interval(np.array([1.0]), 0.95), 1.0, 0.1)
    assert found.verdict == "inconclusive"
    assert "interval too wide" in found.reason


def test_judge__nothing_to_compare():
    assert decision.judge(spread(0.0, 0.0), 0.0, 0.1).verdict == "inconclusive"
    assert decision.judge(t_interval(np.array([math.nan]), 0.95), 1.0, 0.1).verdict == "inconclusive"


def test_judge__busy_host_decides_nothing():
    caveats = decision.busy_caveats([[10.0, 5.0], [10.0, 9.6]], [[10.0, 10.0], [10.0, 10.0]])
    assert caveats == ["host_busy: rank 1 got 0.73 of its core, 0.95 is needed"]
    for mean in (1.0, 3.0):
        assert decision.judge(spread(mean, 0.01), 1.0, 0.1, caveats) == ("inconclusive", caveats[0])
    assert decision.busy_caveats([[9.6, 10.0]], [[10.0, 10.0]]) == []
    assert decision.busy_caveats(None, [[1.0]]) == []
    assert decision.busy_caveats([[0.0, 9.9]], [[0.0, 10.0]]) == []


def test_judge_sharing__is_never_confirmed():
    assert decision.judge_sharing(spread(1.0, 0.01), 1.0, 0.1).verdict == "inconclusive"
    assert decision.judge_sharing(spread(1.5, 0.01), 1.0, 0.1).verdict == "not_confirmed"


def test_overall__the_worst_claim_decides():
    said = {verdict: decision.Verdict(verdict, verdict) for verdict in ("confirmed", "inconclusive", "not_confirmed")}
    assert decision.overall([said["confirmed"]] * 2) == ("confirmed", [])
    assert decision.overall([said["confirmed"], said["inconclusive"]]) == ("inconclusive", ["inconclusive"])
    assert decision.overall(said.values()) == ("not_confirmed", ["not_confirmed"])
    assert decision.overall([decision.Verdict("not_judged")])[0] == "inconclusive"


# --- rows and comparison, from made-up times ---------------------------------------------------------------


class Alone:
    """A group of one process that stands for both ranks."""

    place = Place(0, 2, 0, 2)

    def barrier(self):
        pass

    def gather(self, value):
        return [value, value]


class Stopwatch:
    """Work that takes a millisecond per product."""

    def __init__(self):
        self.queues = []

    def timed(self, queue, beat):
        self.queues.append(sum(queue))
        return Elapsed(float(sum(queue)), float(sum(queue)))


def test_measure__runs_an_assignment_once_and_every_other_round_backwards():
    job, work = Job(warmup=0, repeats=2), Stopwatch()
    plan = plan_makespan(job)
    board = Board(0, 2, 0)
    board.forget()
    found = makespan.measure(job, plan, Alone(), CPU, work, Unit(1, 1.0, 1.0), board)
    once = [plan.assignments[i].units(2)[0] for i in (0, 1, 4, 5)]
    assert [plan.assignments[i].strategy for i in (0, 1, 4, 5)] == [
        "round_robin", "least_loaded", "random", "weighted_random"
    ]  # fmt: skip
    assert work.queues == [*once, *reversed(once)]
    for assignment, times in zip(plan.assignments, found, strict=True):
        assert (times.elapsed == assignment.units(2)[0]).all(), assignment.strategy


def test_measure__rank_without_work_takes_no_time_and_makes_no_host_busy():
    class Coarse(Stopwatch):
        def timed(self, queue, beat):
            # The time of nothing is the noise of the clocks.
            return super().timed(queue, beat) if queue else Elapsed(0.001, 0.0)

    class Nine:
        place = Place(8, 9, 8, 9)

        def barrier(self):
            pass

        def gather(self, value):
            worked = {strategy: [Elapsed(5.0, 5.0)] * len(times) for strategy, times in value.items()}
            return [worked] * 8 + [value]

    # Eight requests in turn leave nothing for the last of nine ranks.
    job = Job(ranks=9, policy=("round_robin",), warmup=0, repeats=5)
    plan = plan_makespan(job)
    board = Board(0, 1, 8)
    board.forget()
    found = makespan.measure(job, plan, Nine(), CPU, Coarse(), Unit(1, 1.0, 1.0), board)
    assert found[0].elapsed.tolist() == [[5.0] * 8 + [0.0]] * 5
    _, verdicts = makespan.compare(job, plan, CPU, Unit(1, 1.0, 1.0), found)
    assert not any("host_busy" in verdict.reason for verdict in verdicts)
    table = text_of({**Report(job, 9).document, "metrics": {"rows": makespan.rows(plan, Unit(1, 1.0, 1.0), found)}})
    assert table.splitlines()[4].split() == ["round_robin", "5.00", "1.00"]


def test_rows__say_with_whom_they_were_measured_and_do_not_compare_a_strategy_with_itself():
    found = document().document
    shared = {row["strategy"]: row["measured_with"] for row in found["metrics"]["rows"]}
    assert shared == {
        "round_robin": None,
        "least_loaded": None,
        "queue_aware": "least_loaded",
        "least_load": "least_loaded",
        "random": None,
        "weighted_random": None,
        "power_of_d": "least_loaded",
        "weighted_round_robin": "round_robin",
        "shortest_expected_delay": "least_loaded",
    }
    (pair,) = (
        pair
        for pair in found["prediction"]["pairs"]
        if (pair["strategy"], pair["quantity"]) == ("weighted_round_robin", "ratio of makespan_ms")
    )
    assert (pair["predicted"], pair["verdict"]) == (1.0, "not_judged")
    assert "queue_aware (run as least_loaded)" in text_of(found)


def test_rows__first_two_strategies_and_units():
    rows = document().document["metrics"]["rows"]
    assert [row["strategy"] for row in rows[:2]] == ["round_robin", "least_loaded"]
    assert [row["request_cost_units_per_rank"] for row in rows[:2]] == [[6, 26], [17, 15]]
    first = rows[0]
    assert first["max_rank_makespan_ms"] == pytest.approx(260, rel=0.01)
    assert first["throughput_requests_per_s_proxy"] == 8 * 1000 / first["max_rank_makespan_ms"]
    assert first["rank_elapsed_ms"] == np.median(first["repeats"]["rank_elapsed_ms"], axis=0).tolist()
    assert first["max_rank_makespan_ms"] == np.median(first["repeats"]["makespan_ms"])
    assert first["spread"]["smallest"] <= first["spread"]["lower"] <= first["spread"]["upper"]


def test_rows__speed_achieved_beside_the_one_asked_for():
    row = document(speeds=(1.0, 0.7)).document["metrics"]["rows"][0]
    assert row["rank_speed_asked"] == [1.0, 0.7]
    assert row["rank_speed_of_whole_products"][0] == 1.0
    for name in ("rank_speed_of_whole_products", "rank_speed_achieved"):
        assert row[name][1] != 0.7
        assert row[name] == pytest.approx([1.0, 0.7], rel=0.01)


def test_compare__confirms_the_published_ratio():
    found = document().document
    pair = found["prediction"]["pairs"][0]
    assert (pair["strategy"], pair["against"]) == ("least_loaded", "round_robin")
    assert pair["predicted"] == pytest.approx(26 / 17)
    assert pair["measured"]["mean"] == pytest.approx(26 / 17, rel=0.01)
    spent = next(pair for pair in found["prediction"]["pairs"] if pair["quantity"] == "ratio of max_rank_cpu_ms")
    assert (spent["strategy"], spent["verdict"]) == ("least_loaded", "not_judged")
    assert spent["measured"]["mean"] == pytest.approx(26 / 17, rel=0.01)
    assert found["decision"] == "confirmed"


def test_compare__noise_and_a_busy_host_are_inconclusive():
    noisy = document(noise=0.3).document
    assert noisy["decision"] == "inconclusive"
    assert "interval too wide" in noisy["decision_reasons"][0]
    busy = document(share=0.5).document
    assert busy["decision"] == "inconclusive"
    assert "host_busy" in busy["decision_reasons"][0]


def test_compare__ranks_that_share_a_device_at_once():
    job = Job(concurrent_sharing=True)
    plan, unit = plan_makespan(job), Unit(20, 0.5, 10.0)
    together = [Timings(np.full((5, 2), 320.0) + np.arange(5.0)[:, None], None) for _ in plan.assignments]
    found, verdicts = makespan.compare(job, plan, Device("cuda", 0, 1, 0, 2, (0,)), unit, together)
    assert [point["predicted"] for point in found["points"]] == [320.0] * len(plan.assignments)
    assert {pair["predicted"] for pair in found["pairs"]} == {1.0}
    assert {verdict.verdict for verdict in verdicts} == {"inconclusive", "not_judged"}


def test_duration__too_long_for_the_timeout():
    with pytest.raises(InputError, match="too long for --timeout 60"):
        makespan.check_duration(Job(), plan_makespan(Job()), CPU, Unit(1, 2000.0, 2000.0))


# --- the board --------------------------------------------------------------------------------------------


@pytest.fixture
def board():
    """The board of ranks 4 and 5, which run, as rank 4 sees it."""
    found = Board(0, 2, 4)
    found.forget()
    for name, value in (("pid", os.getpid()), ("alive", math.inf), ("progress", time.monotonic()), ("state", WORKING)):
        found.slots[name][1] = value
    found.set(WAITING)
    return found


def test_run_id__ranks_share_it_and_runs_do_not():
    """Two launchers with the same id and port, each with two ranks."""
    rank = "from sweep.torch_runner.watch import run_id; print(run_id())"
    run = f"import subprocess as s, sys\nfor _ in 'ab': s.run([sys.executable, '-c', {rank!r}], check=True)"
    fixed = {"PYTHONPATH": str(ROOT), "TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29555"}
    runs = [
        subprocess.run([sys.executable, "-c", run], env=os.environ | fixed, capture_output=True, text=True, check=True)
        for _ in "ab"
    ]
    ids = [found.stdout.split() for found in runs]
    assert ids[0][0] == ids[0][1] != ids[1][0] == ids[1][1]
    assert all(name.startswith("none-29555") for name in ids[0])


def test_board__those_left_by_killed_runs_go_after_a_day(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    now = time.time()
    names = {f"sweep-torch-{os.getuid()}-{'a' * 16}.board": 25, f"sweep-torch-{os.getuid()}-{'b' * 16}.board": 23}
    names |= {f"sweep-torch-{os.getuid() + 1}-{'c' * 16}.board": 25, "other.board": 25}
    for name, hours in names.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now - 3600 * hours,) * 2)
    Board(0, 1, 0).forget()
    assert {path.name for path in tmp_path.iterdir()} == set(list(names)[1:])


def test_board__who_hangs(board):
    def silent(seconds, state):
        board.slots["progress"][1], board.slots["state"][1] = time.monotonic() - seconds, state
        return board.failure(15.0)

    assert silent(14, WORKING) is silent(1000, WAITING) is silent(1000, LEAVING) is None
    assert silent(16, WORKING) == Failure(5, "the process hung: no sign of life for 16 s")
    # The limit is 0.75 of the timeout, and planning may take all of it: 20 s.
    assert silent(19, PLANNING) is None
    assert silent(21, PLANNING) == Failure(5, "the process hung: no sign of life for 21 s")
    silent(0, WORKING)
    board.set(PLANNING)
    board.slots["progress"][0] -= 200
    assert board.failure(15.0).rank == 4


def test_watch__beats_for_a_plan_that_is_computed(board):
    watch = Watch(board, 20.0, str)
    board.set(PLANNING)
    board.slots["progress"][0] = 0.0
    watch._beat_for_the_plan()
    assert board.slots["progress"][0] > 0
    # No processor time since.
    watch.main_cpu_s, board.slots["progress"][0] = math.inf, 0.0
    watch._beat_for_the_plan()
    assert board.slots["progress"][0] == 0


def test_board__whom_the_others_waited_for(board):
    assert board.late() is None
    board.slots["state"][1] = PLANNING
    assert board.late() == Failure(5, "the process had no plan in time")
    board.slots["pid"][1] = 0
    assert board.late() == Failure(5, "the process did not start in time")


# --- the file ---------------------------------------------------------------------------------------------


def test_file__comes_back(tmp_path):
    report = document(output=tmp_path)
    report.write()
    assert report.path == tmp_path / "par-replica-load-routing_default.json"
    assert result.read(report.path) == json.loads(json.dumps(report.document))
    assert [path.name for path in tmp_path.iterdir()] == [report.path.name]


@pytest.mark.parametrize("place", ["decision", "hardware.torch", "metrics.rows.0.strategy", "workload.repeats"])
def test_file__missing_field_is_named(tmp_path, place):
    report = document(output=tmp_path)
    report.write()
    changed = copy.deepcopy(json.loads(report.path.read_text()))
    *parents, last = place.split(".")
    inner = changed
    for name in parents:
        inner = inner[int(name)] if name.isdigit() else inner[name]
    del inner[last]
    report.path.write_text(json.dumps(changed))
    with pytest.raises(InputError, match=f"lacks the field '{place}'"):
        result.read(report.path)


def test_file__wrong_content_is_named(tmp_path):
    report = document(output=tmp_path)
    report.document["decision"] = "maybe"
    with pytest.raises(InputError, match="field 'decision': 'maybe'"):
        report.write()
    assert not list(tmp_path.iterdir())
    report.path.write_text('{"schema_version": 2}')
    with pytest.raises(InputError, match="schema_version 2; this version of sweep reads 1"):
        result.read(report.path)
    report.path.write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        result.read(report.path)
    with pytest.raises(InputError, match="cannot be read"):
        result.read(tmp_path / "none.json")


def test_file__a_failure_compares_nothing(tmp_path):
    report = document(output=tmp_path)
    said = report.write_failure(Failure(1, "the process died (pid 7)"))
    assert said == f"Rank 1 failed: the process died (pid 7). Wrote {report.path}."
    found = result.read(report.path)
    assert found["failure"] == {"rank": 1, "what": "the process died (pid 7)"}
    assert found["decision"] == "not_compared"
    assert found["metrics"]["rows"] == found["prediction"]["pairs"] == []
    found["decision"] = "confirmed"
    with pytest.raises(InputError, match="decision"):
        result.check(found, "it")


def test_file__a_failure_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    report = document(output=folder)
    folder.write_text("in the way")
    why = f"The result cannot be written to '{report.path}': Not a directory."
    assert report.write_failure(Failure(1, "it died")) == f"Rank 1 failed: it died. {why}"
    # sweep validate says it, once.
    monkeypatch.setenv("SWEEP_VALIDATE", str(tmp_path / "unwritten"))
    assert report.write_failure(Failure(1, "it died")) == report.write_failure(Failure(None, "lost")) == ""
    said = launch._what_failed(report.path, "0-", {}, tmp_path / "unwritten")
    assert said == f"Rank 1 failed: it died. {why}"


def test_file__a_failure_beside_a_result_of_another_run_is_said(tmp_path):
    report = document(output=tmp_path)
    report.document["run_id"] = "another"
    report.write()
    said = document(output=tmp_path).write_failure(Failure(1, "it died"))
    assert said.startswith(f"Rank 1 failed: it died. The result '{report.path}' exists")
    assert result.read(report.path)["run_id"] == "another"


def test_file__no_place_for_it(tmp_path):
    (tmp_path / "out").write_text("in the way")
    for folder in (tmp_path / "out", tmp_path / "out" / "deeper"):
        report = document(output=folder)
        with pytest.raises(InputError, match=r"cannot be written to .* is not a folder"):
            report.refuse_if_taken()
        with pytest.raises(InputError, match=r"cannot be written to .*: Not a directory"):
            report.write()
    if os.getuid():
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        with pytest.raises(InputError, match="is closed to writing"):
            document(output=closed).refuse_if_taken()


def test_file__history_is_kept(tmp_path):
    report = document(output=tmp_path)
    report.write()
    before = report.path.read_bytes()
    for attempt in (report.refuse_if_taken, report.write):
        with pytest.raises(result.Exists, match="choose another --label, or give --force"):
            attempt()
    # A second rank that finds a failure already written leaves it.
    assert report.write_failure(Failure(0, "late")) == ""
    assert report.path.read_bytes() == before
    forced = document(output=tmp_path, force=True, tolerance=0.2)
    forced.write()
    assert result.read(report.path)["workload"]["tolerance"] == 0.2
    assert forced.write_failure(Failure(0, "late")) == ""
