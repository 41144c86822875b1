import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from rules import random_replica, registered

import sweep
from sweep import InputError

WORK = sweep.Workload.poisson(requests=60, utilisation=0.8, replicas=3, sessions=9, prefixes=5)
FLEET = sweep.Fleet.one_slow(replicas=3, heterogeneity=[0.0, 0.4])
GRID = {"policy": ["round_robin", "queue_aware", "locality_aware"], "slack": [0, 5, 20], "seed": 7}


def run(**changes):
    return sweep.run(WORK, FLEET, **{**GRID, **changes})


def test_dataset__has_the_dimensions_asked_for():
    ds = sweep.run(WORK, FLEET, policy="queue_aware")
    assert dict(ds.p99_queue_wait_ms.sizes) == {"policy": 1, "slack": 1, "heterogeneity": 2, "seed": 32}
    assert ds.slack.values.tolist() == [5.0]
    assert ds.speed.dims == ("heterogeneity", "replica")
    np.testing.assert_array_equal(ds.speed, FLEET.speeds)


def test_policy_parameters__are_coordinates_along_policy():
    work = sweep.Workload.dplb_burst()
    policies = ["round_robin", "least_load", "least_load(in_service_weight=0.5)"]
    ds = sweep.run(work, FLEET, policy=policies, seed=1, engine="token_step")
    np.testing.assert_array_equal(ds.in_service_weight, [np.nan, 1.0, 0.5])
    assert ds.policy.values.tolist() == policies


def test_broadcast__a_policy_that_reads_no_slack_repeats_along_it():
    ds = run()
    assert ds.reads_slack.values.tolist() == [False, False, True]
    for name in ds.data_vars:
        fixed = ds[name].sel(policy="queue_aware")
        assert fixed.identical(fixed.isel(slack=[0, 0, 0]).assign_coords(slack=ds.slack)), name
    moved = ds.p99_queue_wait_ms.sel(policy="locality_aware")
    assert not (moved.isel(slack=0) == moved.isel(slack=2)).all()


def test_slack__reads_slack_is_true_to_its_word():
    alone = run(policy="round_robin", slack=[0.0]).drop_vars("slack").isel(slack=0)
    many = run(policy="round_robin").drop_vars("slack").isel(slack=2)
    assert alone.load_variance.equals(many.load_variance)


def test_empty_stream__is_no_error():
    nothing = sweep.Workload.fixed(sweep.Requests.from_records([]))
    ds = sweep.run(nothing, FLEET, policy=GRID["policy"], seed=2)
    assert (ds.request_count == 0).all() and (ds.session_moves == 0).all() and (ds.replica_requests == 0).all()
    assert ds.p99_queue_wait_ms.isnull().all() and ds.load_variance.isnull().all()


def test_warmup__longer_than_the_stream_leaves_nothing():
    ds = run(warmup=1_000)
    assert (ds.request_count == 0).all() and ds.mean_latency_ms.isnull().all()


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_own_threads__same_bits(workers):
    assert run(workers=workers).identical(run(workers=1))


def test_callers_executor__same_bits():
    with ThreadPoolExecutor(2) as pool:
        assert run(executor=pool).identical(run())


def test_processes__same_bits_also_for_a_registered_rule():
    policies = [*GRID["policy"], "anywhere"]
    context = multiprocessing.get_context("spawn")
    with registered(("anywhere", random_replica, {})), ProcessPoolExecutor(2, mp_context=context) as pool:
        assert run(executor=pool, policy=policies).identical(run(policy=policies))


def test_broken_executor__ends_with_a_clear_error():
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=context, initializer=os._exit, initargs=(1,)) as pool,
        pytest.raises(InputError, match=r"executor broke: .* 0 of \d+ blocks were done"),
    ):
        run(executor=pool)


def test_executor__something_else_is_refused():
    with pytest.raises(InputError, match=r"concurrent\.futures\.Executor"):
        run(executor=2)
    with pytest.raises(InputError, match="workers must be a whole number >= 1"):
        run(workers=0)


def test_rule__that_names_no_replica_is_an_error_and_leaves_no_thread():
    def astray(view, request, parameters):
        return 3 if request.position == 40 else 0

    with (
        registered(("astray", astray, {})),
        pytest.raises(InputError, match=r"'astray' sent request 40 to a replica that does not exist.*0 to 2"),
    ):
        run(policy="astray")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sweep")]


def test_rule__that_numba_cannot_compile_is_one_sentence():
    def opaque(view, request, parameters):
        return view.no_such_signal

    with registered(("opaque", opaque, {})), pytest.raises(InputError, match=r"'opaque' cannot be compiled") as error:
        run(policy="opaque")
    assert "no_such_signal" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"warmup": 3}, "warmup must be 0"),
        ({"slo_ms": 3.0}, "slo_ms is a setting of the engine 'timeline'"),
        ({}, "the stream has none"),
    ],
)
def test_token_step__refuses_what_it_cannot_measure(changes, said):
    with pytest.raises(InputError) as error:
        sweep.run(WORK, FLEET, policy="round_robin", engine="token_step", **changes)
    assert said in str(error.value)


def test_token_step__a_replica_that_never_drains_is_refused():
    with pytest.raises(InputError, match=r"speed 0\.005 serves 100 x speed = 0 whole tokens"):
        stream = sweep.Requests.from_arrays([0.0], [1.0], prompt_tokens=[10])
        sweep.simulate(stream, [1.0, 0.005], policy="round_robin", engine="token_step")


def test_token_step__skips_idle_time_and_refuses_too_much_of_it():
    stream = sweep.Requests.from_arrays([0.0, 9e8], [1.0, 1.0], prompt_tokens=[150, 150])
    ds = sweep.run(sweep.Workload.fixed(stream), FLEET, policy="round_robin", seed=1, engine="token_step")
    assert (ds.finished_requests == 2).all() and (ds.cumulative_load_tokens.sum("replica") >= 300).all()
    with pytest.raises(InputError, match="give a larger step_ms"):
        sweep.simulate(stream, [1.0], policy="round_robin", engine="token_step", step_ms=1e-6)


def test_interrupt__stops_within_a_second_and_says_what_was_done():
    code = r"""
import os
import sweep
import sweep.work
work = sweep.Workload.poisson(requests=2_000, utilisation=0.9, replicas=4, sessions=500, prefixes=500)
fleet = sweep.Fleet.one_slow(replicas=4, heterogeneity=[0.1 * k for k in range(8)])
grid = dict(policy="locality_aware", slack=range(4))
sweep.run(work, fleet, seed=2, **grid)  # compiles
simulate = sweep.work.simulate
def announced(*arguments):
    os.write(1, b"running\n")  # whole, whatever another thread writes
    return simulate(*arguments)
sweep.work.simulate = announced
try:
    sweep.run(work, fleet, seed=20_000, **grid)
except KeyboardInterrupt as error:
    print(error, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "running\n"
        before = time.monotonic()
        process.send_signal(signal.SIGINT)
        said = process.stdout.read()
        process.wait(timeout=60)
    assert "blocks were done; nothing was written" in said
    # A generous multiple of the second that is promised, for a busy machine.
    assert time.monotonic() - before < 10
