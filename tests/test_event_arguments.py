"""Failures on the command line: what happens to replicas, how it is handled, and what the commands say of it."""

import json

import pytest

import sweep

FAILING = ("--replicas", 2, "--down", "0:300:600", "--heartbeat-ms", 20, "--misses", 2)
SMALL = ("--requests", 200, "--policy", "round_robin,power_of_d(signal=requests)")


def fleet(*rest, **options):
    return sweep.Fleet.fixed([1.0, 1.0]).with_events([sweep.Down(0, 300.0, 600.0), *rest], **options)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (FAILING, fleet(heartbeat_ms=20.0, misses=2)),
        (
            (*FAILING[:4], "--retries", 0, "--breaker", "2:50", "--no-replica", "lose"),
            fleet(retries=0, breaker=sweep.Breaker(2, 50.0), no_replica="lose"),
        ),
        (
            (*FAILING[:4], "--slow", "1:100:200:0.5,1:250:300:2", "--drain", "1:400:inf"),
            fleet(
                sweep.Slow(1, 100.0, 200.0, 0.5), sweep.Slow(1, 250.0, 300.0, 2.0), sweep.Drain(1, 400.0, float("inf"))
            ),
        ),
    ],
)
def test_run__is_the_fleet_of_python(call, tmp_path, arguments, expected):
    status, _, err = call("run", "-q", *SMALL, *arguments, "--seeds", 2, "-o", tmp_path / "a.zarr")
    assert (status, err) == (0, "")
    stored = json.loads((tmp_path / "a.zarr" / "grid.json").read_text())
    assert stored["events"] == json.loads(json.dumps(expected.events.to_dict()))
    work = sweep.Workload.poisson(requests=200, utilisation=0.9, replicas=2)
    ds = sweep.run(work, expected, policy=["round_robin", "power_of_d(signal=requests)"], seed=2)
    kept = sweep.open(tmp_path / "a.zarr")
    for name in ("lost_requests", "retried_requests", "p99_queue_wait_ms"):
        assert kept[name].values.tolist() == ds[name].values.tolist()
    status, _, err = call("run", "-q", *SMALL, *arguments, "--misses", 9, "--seeds", 2, "-o", tmp_path / "a.zarr")
    assert status == 2
    assert "events.misses is " in err


def test_run__a_config_file_may_hold_events(call, tmp_path):
    config = tmp_path / "grid.toml"
    config.write_text('down = ["0:300:600", "1:700:800"]\nheartbeat-ms = 20\nbreaker = "2:50"\n')
    status, out, err = call("run", "-q", *SMALL, "--replicas", 2, "--seeds", 2, "--config", config)
    assert (status, err) == (0, "")
    assert "lost" in out and "retried" in out
    config.write_text("down = [3]\n")
    status, _, err = call("run", "-q", *SMALL, "--config", config)
    assert (status, err.count("\n")) == (2, 1)
    assert "down = [3]: 3 is of the wrong kind; write REPLICA:START:END,... as on the command line" in err


def test_explain__says_what_was_lost(call):
    status, out, _ = call(
        "explain", "--requests", 60, "--replicas", 2, "--down", "0:30:inf", "--policy", "round_robin", "--retries", 0
    )
    assert status == 0
    assert "lost, sent once" in out and "(lost)" in out


def test_compare__shows_what_was_lost(call, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_ms,service_ms\n" + "".join(f"{3.0 * i},5.0\n" for i in range(200)))
    status, out, err = call("compare", trace, *FAILING, "--retries", 0)
    assert (status, err) == (0, "")
    assert all(word in out for word in ("lost", "retried", "misrouted", "recovery"))
    stream = sweep.Requests.from_arrays([3.0 * i for i in range(200)], [5.0] * 200)
    frame = sweep.compare(stream, speeds=fleet(heartbeat_ms=20.0, misses=2, retries=0))
    assert (frame.lost_requests + frame.request_count == 200).all()
    assert (frame.lost_requests > 0).all()
    assert "lost_requests" not in sweep.compare(stream, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--down", "9:1:2"), "names a replica that does not exist; there are replicas 0 to 3"),
        (("--down", "0:1:5,0:3:8"), "Events of replica 0 overlap"),
        (("--down", "0:1:5", "--slow", "0:3:8:0.5"), "Events of replica 0 overlap"),
        (("--drain", "0:5:1"), "must be a number > 5, got 1"),
        (("--down", "0:x:1"), "'0:x:1' is not of the form REPLICA:START:END, times in ms, such as 0:3000:6000"),
        (("--down", "0.5:1:2"), "is not of the form REPLICA:START:END"),
        (("--down", "0:1"), "is not of the form REPLICA:START:END"),
        (("--slow", "0:1:2"), "is not of the form REPLICA:START:END:FACTOR"),
        (("--slow", "0:1:2:0"), "factor of Slow"),
        (("--down", "0:1:2", "--breaker", "3"), "is not of the form FAILURES:COOLDOWN"),
        (("--down", "0:1:2", "--breaker", "0:9"), "failures of the breaker must be a whole number >= 1"),
        (("--down", "0:1:2", "--retries", "1000"), "from 0 to 100"),
        (("--down", "0:1:2", "--no-replica", "wiat"), "Did you mean 'wait'?"),
        (("--heartbeat-ms", "5"), "--heartbeat-ms says how failures are handled; give what happens"),
    ],
)
def test_mistake__one_sentence_and_status_2(call, arguments, said):
    for command in ("run", "explain"):
        status, out, err = call(command, "-q", "--requests", 20, *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert said in err
