"""Results of the torch runner from made-up times, for tests that look at what is made of them."""

from __future__ import annotations

import numpy as np

from sweep.torch_runner import makespan
from sweep.torch_runner.devices import Device
from sweep.torch_runner.job import Job
from sweep.torch_runner.makespan import Timings
from sweep.torch_runner.plan import plan_makespan
from sweep.torch_runner.report import Report
from sweep.torch_runner.work import Unit

CPU = Device("cpu", slot=0, slots=2, turn=0, turns=1, cores=(0, 1))


def timings(plan, unit, noise=0.0, share=1.0):
    rng = np.random.default_rng(1)
    found = []
    for assignment in plan.assignments:
        ms = np.array([unit.product_ms * n for n in makespan._products(plan, assignment, unit)])
        elapsed = ms * (1 + noise * rng.standard_normal((5, plan.ranks)))
        found.append(Timings(elapsed, share * elapsed))
    return found


def document(noise=0.001, share=1.0, **options):
    job = Job(**options)
    plan, unit = plan_makespan(job), Unit(20, 0.5, 10.0)
    measured = timings(plan, unit, noise, share)
    report = Report(job, plan.ranks)
    report.document["metrics"]["rows"] = makespan.rows(plan, unit, measured)
    report.document["prediction"], verdicts = makespan.compare(job, plan, CPU, unit, measured)
    report.decide(verdicts)
    return report
