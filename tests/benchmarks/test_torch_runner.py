"""What two CPU ranks measure, against what was predicted. Nothing here asserts a time."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from sweep.tables import estimate
from sweep.torch_runner import result

pytest.importorskip("torch")


def validated(folder, *options):
    """The result of `sweep validate` on two ranks."""
    command = [sys.executable, "-m", "sweep", "validate", "--output", str(folder / "out.json"), *options]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return result.read(folder / "out.json")


def least_share(document):
    """The least share of its core that a rank got in any row."""
    shares = []
    for row in document["metrics"]["rows"]:
        wall = row["repeats"].get("rank_busy_ms", row["repeats"]["rank_elapsed_ms"])
        for rank in range(2):
            shares.append(sum(r[rank] for r in row["repeats"]["rank_cpu_ms"]) / sum(w[rank] for w in wall))
    return min(shares)


def test_makespan__ratio(benchmark, report, measuring, tmp_path):
    # Short rounds, many of them: what the machine's pace does within minutes meets every strategy alike.
    options = ["--compute-dim", "256", "--unit-ms", "2", "--repeats", "100"]
    options = options if measuring else ["--compute-dim", "64", "--unit-ms", "1", "--repeats", "2"]
    found = benchmark.pedantic(validated, (tmp_path, *options), rounds=1)
    report(f"torch runner, two CPU ranks, {found['workload']['repeats']} repeats, "
           f"least share of a core {least_share(found):.2f}: {found['decision']}")  # fmt: skip
    for pair in found["prediction"]["pairs"]:
        measured = pair["measured"]
        bounds = [math.nan if measured[name] is None else measured[name] for name in ("mean", "lower", "upper")]
        report(
            f"  {pair['quantity']:25s} round_robin / {pair['strategy']:23s} predicted {pair['predicted']:.3f}, "
            f"measured {estimate(*bounds)} (n = {measured['n']}): {pair['verdict']}"
        )


def test_replay__error_of_the_recomputed_prediction(benchmark, report, measuring, tmp_path):
    options = ["--mode", "replay", "--compute-dim", "192", "--policy", "round_robin,queue_aware"]
    options += [] if measuring else ["--requests", "20", "--repeats", "2", "--warmup", "0"]
    found = benchmark.pedantic(validated, (tmp_path, *options), rounds=1)
    report(f"replay of {found['workload']['request_count']} requests, {found['workload']['repeats']} repeats, "
           f"least share of a core {least_share(found):.2f}: {found['decision']}")  # fmt: skip
    for point in found["prediction"]["points"]:
        if point["quantity"] == "p95_queue_wait_ms":
            error = point["median_absolute_error"]
            said = "-, no request waits" if error is None else f"{100 * error:.1f} % (n = {point['ratio']['n']})"
            report(f"  {point['strategy']:11s} {point['routing']:7s} P95: median |measured / recomputed - 1| = {said}")
