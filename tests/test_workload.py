"""Workloads: distributions against theory, common random numbers, independence, exact round trips, errors.

Seeds are fixed, so a test either passes always or never. A bound of 5 standard errors is written `Z`.
"""

import json
import math
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.errors import InputError
from sweep.requests import Requests
from sweep.workload import Workload

Z = 5.0
MANY = 200_000
BASE = {"utilisation": 0.9, "replicas": 4}


def gaps(requests: Requests) -> np.ndarray:
    return np.diff(requests.arrival_ms, prepend=0.0)


def same_stream(left: Requests, right: Requests) -> bool:
    return left.fingerprint() == right.fingerprint()


# Arrivals


def test_poisson__gaps_are_exponential_with_the_mean_asked_for():
    x = gaps(Workload.poisson(MANY, utilisation=0.8, replicas=5, mean_service_ms=10.0).realise(1))
    mean = 10.0 / (0.8 * 5)
    assert abs(x.mean() - mean) < Z * mean / math.sqrt(MANY)
    # The sample CV of n exponentials has standard error 1/sqrt(n); the tail beyond 3 means has share e^-3.
    assert abs(x.std() / x.mean() - 1.0) < Z / math.sqrt(MANY)
    assert abs((x > 3 * mean).mean() - math.exp(-3)) < Z * math.sqrt(math.exp(-3) / MANY)
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < Z / math.sqrt(MANY)


def test_poisson__rate_and_utilisation_say_the_same():
    # 0.9 * 4 / 10 ms = 360 per second.
    by_rate = Workload.poisson(100, rate_per_s=360.0).realise(3)
    assert np.allclose(by_rate.arrival_ms, Workload.poisson(100, **BASE).realise(3).arrival_ms, rtol=1e-14)


def test_poisson__offered_load_is_the_utilisation():
    loads = [Workload.poisson(5_000, **BASE).realise(seed).offered_load(4) for seed in range(40)]
    # Of one run the CV is sqrt(2/n): exponential service over exponential gaps.
    assert abs(np.mean(loads) / 0.9 - 1.0) < Z * math.sqrt(2 / 5_000 / 40)


@pytest.mark.parametrize(("peak", "share"), [(5.0, 0.1), (2.0, 0.5), (1.5, 0.3)])
def test_bursty__mean_rate_and_dispersion(peak, share):
    gap, burst_ms, n = 2.0, 100.0, 20_000
    work = Workload.bursty(n, peak_to_mean=peak, burst_ms=burst_ms, burst_share=share, rate_per_s=1000.0 / gap)
    streams = [work.realise(seed) for seed in range(60)]
    # A window that every run covers, at a fixed place: counts there have the stationary law.
    width, window = 500.0, 20_000.0
    counts = np.concatenate([np.histogram(s.arrival_ms, np.arange(0, window + 1, width))[0] for s in streams])
    assert min(s.arrival_ms[-1] for s in streams) > window
    # Fischer and Meier-Hellstern 1993: variance = mean t + 2 a (t - (1 - e^-ct) / c), where c is the sum of the
    # two switching rates and a = variance of the rate / c.
    c = 1.0 / burst_ms + share / (burst_ms * (1.0 - share))
    calm = (1.0 - peak * share) / (1.0 - share)
    rate_variance = (share * (peak - 1.0) ** 2 + (1.0 - share) * (1.0 - calm) ** 2) / gap**2
    mean = width / gap
    variance = mean + 2.0 * rate_variance / c * (width - (1.0 - math.exp(-c * width)) / c)
    # Neighbouring windows are correlated: the error of the mean is that of the total over the window of each run.
    total = window / gap + 2.0 * rate_variance / c * (window - 1.0 / c)
    assert abs(counts.mean() - mean) < Z * math.sqrt(total / 60) * width / window
    assert counts.var() == pytest.approx(variance, rel=0.15)


def test_bursty__peak_ratio_and_share_of_time_in_bursts():
    # Nothing arrives between bursts, and bursts are long: gaps inside one show the peak rate, the long gaps the calm.
    work = Workload.bursty(MANY, peak_to_mean=4.0, burst_ms=2_000.0, burst_share=0.25, rate_per_s=1000.0)
    x = gaps(work.realise(5))
    inside, between = x[x < 25.0], x[x >= 25.0]
    assert inside.mean() == pytest.approx(0.25, rel=Z / math.sqrt(MANY))
    assert between.mean() == pytest.approx(6_000.0 + 25.0, rel=Z / math.sqrt(len(between)))
    assert inside.sum() / x.sum() == pytest.approx(0.25, rel=Z * 1.5 / math.sqrt(len(between)))


def test_bursty__starts_in_the_stationary_distribution():
    work = Workload.bursty(1, peak_to_mean=3.0, burst_ms=1e9, burst_share=0.2, rate_per_s=1000.0)
    first = np.array([work.realise(seed).arrival_ms[0] for seed in range(2_000)])
    # Sojourns so long that the first phase decides: rate 3 with probability 0.2, else 0.5.
    expected = 0.2 / 3.0 + 0.8 / 0.5
    second_moment = 2 * (0.2 / 3.0**2 + 0.8 / 0.5**2)
    assert abs(first.mean() - expected) < Z * math.sqrt((second_moment - expected**2) / 2_000)


def test_bursty__peak_of_one_is_poisson():
    bursty = Workload.bursty(1_000, peak_to_mean=1.0, burst_ms=50.0, **BASE).realise(2)
    assert np.allclose(bursty.arrival_ms, Workload.poisson(1_000, **BASE).realise(2).arrival_ms, rtol=1e-9)


@pytest.mark.parametrize("burst_ms", [0.01, 1.0, 1e6])
def test_bursty__sorted_and_finite_at_any_scale(burst_ms):
    work = Workload.bursty(3_000, peak_to_mean=10, burst_ms=burst_ms, **BASE)
    for seed in range(10):
        arrival = work.realise(seed).arrival_ms
        assert np.isfinite(arrival).all() and (np.diff(arrival) >= 0.0).all() and arrival[0] > 0.0


# Service


@pytest.mark.parametrize(
    ("service", "cv", "fourth"),
    [("exponential", 1.0, 9.0), ("gamma", 0.5, 4.5), ("gamma", 2.0, 27.0), ("lognormal", 0.5, 9.0)],
)
def test_service__mean_and_cv(service, cv, fourth):
    given_cv = {} if service == "exponential" else {"service_cv": cv}
    x = Workload.poisson(MANY, **BASE, mean_service_ms=7.0, service=service, **given_cv).realise(4).service_ms
    assert abs(x.mean() - 7.0) < Z * 7.0 * cv / math.sqrt(MANY)
    # The sample variance has relative standard error sqrt((kurtosis - 1) / n); `fourth` bounds the kurtosis.
    assert x.std() / x.mean() == pytest.approx(cv, rel=Z * math.sqrt(fourth / MANY))


def test_service__lognormal_quantiles():
    x = Workload.poisson(MANY, **BASE, service="lognormal", service_cv=2.0).realise(4).service_ms
    sigma = math.sqrt(math.log(5.0))
    log = np.log(x)
    assert abs(log.mean() - (math.log(10.0) - sigma**2 / 2)) < Z * sigma / math.sqrt(MANY)
    assert log.std() == pytest.approx(sigma, rel=Z / math.sqrt(2 * MANY))


def test_service__deterministic_is_exact():
    assert set(Workload.poisson(10, **BASE, service="deterministic").realise(0).service_ms.tolist()) == {10.0}


# Sessions and prefixes


def test_popularity__uniform_shares():
    counts = np.bincount(Workload.poisson(MANY, **BASE, sessions=40).realise(6).session, minlength=40)
    assert np.abs(counts - MANY / 40).max() < Z * math.sqrt(MANY / 40)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_popularity__zipf_shares(exponent):
    work = Workload.poisson(MANY, **BASE, prefixes=30, popularity="zipf", zipf_exponent=exponent)
    shares = np.arange(1.0, 31.0) ** -exponent
    expected = MANY * shares / shares.sum()
    counts = np.bincount(work.realise(6).prefix, minlength=30)
    assert (np.abs(counts - expected) < Z * np.sqrt(expected) + 1).all()


def test_session__own_keeps_one_prefix_for_life():
    for sessions, prefixes in ((50, 7), (7, 50), (50, 50)):
        requests = Workload.poisson(2_000, **BASE, sessions=sessions, prefixes=prefixes).realise(0)
        assert (requests.prefix == requests.session % prefixes).all()
        assert (requests.session_count, requests.prefix_count) == (sessions, prefixes)
        assert requests.session.max() < sessions and requests.session.min() >= 0


def test_session__independent_prefix_is_not_tied_to_the_session():
    work = Workload.poisson(MANY, **BASE, sessions=10, prefixes=10, session_prefix="independent")
    requests = work.realise(0)
    table = np.bincount(requests.session * 10 + requests.prefix, minlength=100)
    assert np.abs(table - MANY / 100).max() < Z * math.sqrt(MANY / 100)


def test_keys__none_where_there_are_none():
    none = Workload.poisson(5, **BASE).realise(0)
    assert none.prefix.tolist() == none.session.tolist() == [-1] * 5
    assert Workload.poisson(5, **BASE, sessions=3).realise(0).prefix.tolist() == [-1] * 5
    prefixes = Workload.poisson(5, **BASE, prefixes=3).realise(0)
    assert prefixes.session.tolist() == [-1] * 5 and prefixes.prefix.min() >= 0
    assert len(Workload.poisson(0, **BASE, sessions=3, prefixes=2).realise(0)) == 0
    assert len(Workload.bursty(0, peak_to_mean=2, burst_ms=5, **BASE).realise(0)) == 0


# Randomness


FULL = {**BASE, "sessions": 20, "prefixes": 10, "session_prefix": "independent"}


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({"service": "gamma", "service_cv": 2.0}, {"service_ms"}),
        ({"mean_service_ms": 20.0, "utilisation": 1.8}, {"service_ms"}),
        ({"sessions": 30}, {"session"}),
        ({"prefixes": 5}, {"prefix"}),
        ({"sessions": 0}, {"session"}),
        ({"utilisation": 0.5}, {"arrival_ms"}),
        ({"popularity": "zipf"}, {"session", "prefix"}),
    ],
)
def test_components__changing_one_never_shifts_another(change, moved):
    left = Workload.poisson(500, **FULL).realise(11)
    right = Workload.poisson(500, **{**FULL, **change}).realise(11)
    names = ("arrival_ms", "service_ms", "session", "prefix")
    assert {name for name in names if not np.array_equal(getattr(left, name), getattr(right, name))} == moved


def test_components__are_not_correlated_with_each_other():
    requests = Workload.poisson(MANY, **FULL).realise(3)
    columns = np.array([gaps(requests), requests.service_ms, requests.session, requests.prefix])
    off_diagonal = np.corrcoef(columns)[np.triu_indices(4, k=1)]
    assert np.abs(off_diagonal).max() < Z / math.sqrt(MANY)


def test_bursts__do_not_touch_the_other_components():
    poisson = Workload.poisson(500, **FULL).realise(11)
    bursty = Workload.bursty(500, peak_to_mean=5, burst_ms=100, **FULL).realise(11)
    for name in ("service_ms", "session", "prefix"):
        assert np.array_equal(getattr(poisson, name), getattr(bursty, name))


def test_common_random_numbers__arrivals_scale_along_utilisation():
    streams = [work.realise(7) for _, work in Workload.poisson(300, utilisation=[0.4, 0.8], replicas=4).points()]
    assert np.array_equal(streams[0].arrival_ms, 2.0 * streams[1].arrival_ms)
    assert np.array_equal(streams[0].service_ms, streams[1].service_ms)


def test_common_random_numbers__bursty_stretches_with_time():
    slow = Workload.bursty(300, peak_to_mean=5, burst_ms=200, rate_per_s=100).realise(7)
    fast = Workload.bursty(300, peak_to_mean=5, burst_ms=100, rate_per_s=200).realise(7)
    assert np.allclose(slow.arrival_ms, 2.0 * fast.arrival_ms, rtol=1e-12)


def test_common_random_numbers__shorter_stream_is_the_start_of_the_longer():
    for work in (
        Workload.poisson([100, 301], **FULL, popularity="zipf"),
        Workload.bursty([100, 301], peak_to_mean=3, burst_ms=7, **FULL, service="gamma"),
    ):
        short, long = (point.realise(9) for _, point in work.points())
        for name in ("service_ms", "session", "prefix"):
            assert np.array_equal(getattr(short, name), getattr(long, name)[:100])
        assert np.allclose(short.arrival_ms, long.arrival_ms[:100], rtol=1e-12)


def test_common_random_numbers__zipf_draws_move_one_way_along_the_exponent():
    work = Workload.poisson(2_000, **BASE, prefixes=50, popularity="zipf", zipf_exponent=[0.0, 0.5, 1.0, 2.0])
    drawn = np.array([point.realise(1).prefix for _, point in work.points()])
    assert (np.diff(drawn, axis=0) <= 0).all()


def test_seed__same_gives_the_same_bits_and_others_do_not():
    work = Workload.poisson(50, **FULL)
    assert same_stream(work.realise(5), Workload.poisson(50, **FULL).realise(np.int64(5)))
    assert len({work.realise(seed).fingerprint() for seed in [*range(50), 2**40, 2**100]}) == 52


def test_stream__recorded_values():
    # A stream is a function of (workload, seed): raise STREAM_VERSION whenever these have to change.
    requests = Workload.poisson(3, **FULL).realise(0)
    assert requests.arrival_ms.tolist() == pytest.approx([9.148688, 11.268496, 14.747293], abs=1e-6)
    assert requests.service_ms.tolist() == pytest.approx([8.031044, 3.820017, 3.641760], abs=1e-6)
    assert (requests.session.tolist(), requests.prefix.tolist()) == ([16, 1, 12], [3, 5, 4])
    bursty = Workload.bursty(3, peak_to_mean=5, burst_ms=100, **FULL).realise(0)
    assert bursty.arrival_ms.tolist() == pytest.approx([16.467639, 20.283293, 26.545128], abs=1e-6)


# The DPLB burst and fixed streams


def test_dplb__seed_42_gives_170_requests():
    requests = Workload.dplb_burst().realise(42)
    assert len(requests) == 170
    assert requests.steps == 100


@pytest.mark.parametrize("seed", [0, 1, 42, 999])
def test_dplb__draws_as_published(seed):
    draw = random.Random(seed)
    expected = []
    for t in range(100):
        if 10 <= t < 40:
            expected += [(t, draw.randint(40, 60)) for _ in range(draw.randint(4, 6))]
        else:
            expected += [(t, draw.randint(20, 40)) for _ in range(draw.randint(0, 1))]
    requests = Workload.dplb_burst().realise(seed)
    assert list(zip(requests.arrival_ms.tolist(), requests.tokens.tolist(), strict=True)) == expected
    assert requests.service_ms.tolist() == [size / 100 for _, size in expected]
    assert set(requests.prefix.tolist()) == set(requests.session.tolist()) == {-1}


def test_fixed__is_the_same_for_every_seed():
    requests = Requests.from_arrays([0.0, 1.0], [1.0, 2.0], session=["a", "b"])
    work = Workload.fixed(requests)
    assert work.realise(0) is requests is work.realise(9)
    assert work.points() == [({}, work)]


# Lists, round trips


def test_dims__lists_tuples_ranges_and_arrays_in_signature_order():
    work = Workload.poisson(
        sessions=range(3), service=("gamma", "lognormal"), utilisation=np.array([0.5, 1.0]), replicas=4, requests=[5]
    )
    assert list(work.dims.items()) == [
        ("requests", (5,)),
        ("utilisation", (0.5, 1.0)),
        ("service", ("gamma", "lognormal")),
        ("sessions", (0, 1, 2)),
    ]
    points = work.points()
    assert len(points) == 12
    assert [point["sessions"] for point, _ in points[:4]] == [0, 1, 2, 0]
    assert points[-1][0] == {"requests": 5, "utilisation": 1.0, "service": "lognormal", "sessions": 2}
    for point, scalar in points:
        assert scalar.dims == {}
        assert scalar == Workload.poisson(replicas=4, **point)


def test_dims__a_list_cannot_be_realised():
    with pytest.raises(InputError, match=r"utilisation holds several values; realise one of points\(\)"):
        Workload.poisson(5, utilisation=[0.5], replicas=4).realise(0)


WORKLOADS = [
    Workload.poisson(20, **BASE),
    Workload.poisson(20, rate_per_s=1 / 3, service="lognormal", service_cv=0.1 + 0.2, sessions=4, prefixes=3),
    Workload.poisson(np.array([20, 30]), utilisation=(0.7, 0.1 + 0.2), replicas=3, popularity=["uniform", "zipf"]),
    Workload.bursty(20, peak_to_mean=[2, 5], burst_ms=1 / 7, burst_share=1 / 7, **BASE),
    Workload.dplb_burst(),
    Workload.fixed(Requests.from_arrays([0.1, 0.7], [1 / 3, 2.0], prefix=["a", None], session=[3, 4], steps=7)),
]


@pytest.mark.parametrize("work", WORKLOADS, ids=repr)
def test_dict__round_trip_exact_through_json_and_pickle(work):
    for copy in (Workload.from_dict(json.loads(json.dumps(work.to_dict()))), pickle.loads(pickle.dumps(work))):
        assert copy == work and hash(copy) == hash(work)
        assert copy.to_dict() == work.to_dict()
        assert copy.dims == work.dims
        for (_, left), (_, right) in zip(work.points(), copy.points(), strict=True):
            assert same_stream(left.realise(3), right.realise(3))


def test_pickle__after_use():
    work = Workload.bursty(20, peak_to_mean=2, burst_ms=5, **FULL)
    stream = work.realise(1)
    assert same_stream(pickle.loads(pickle.dumps(work)).realise(1), stream)


def test_fingerprint__differs_between_workloads():
    assert len({work.fingerprint() for work in WORKLOADS}) == len(WORKLOADS)
    assert Workload.poisson(20, **BASE) != Workload.poisson(21, **BASE)
    assert Workload.poisson(20, **BASE) != "poisson"


def test_repr__can_be_read_and_evaluated():
    for work in WORKLOADS[:5]:
        assert eval(repr(work)) == work
    assert repr(WORKLOADS[0]) == "Workload.poisson(requests=20, utilisation=0.9, replicas=4)"
    assert repr(WORKLOADS[5]) == "Workload.fixed(requests=Requests(2 requests over 0.6 ms, 1 prefix, 2 sessions))"


def test_workload__is_frozen():
    with pytest.raises(AttributeError):
        WORKLOADS[0].kind = "bursty"
    with pytest.raises(TypeError):
        WORKLOADS[0].parameters["requests"] = 3
    requests = WORKLOADS[0].realise(0)
    with pytest.raises(ValueError, match="read-only"):
        requests.prefix[0] = 1


# Errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"requests": -1}, "requests must be a whole number >= 0, got -1"),
        ({"requests": 2.0}, "requests must be a whole number >= 0, got 2.0"),
        ({"requests": 10**12}, "requests must be a whole number from 0 to 100,000,000, got 1000000000000"),
        ({"requests": None}, "requests must be given, got None"),
        ({"utilisation": 0.0}, "utilisation must be a finite number .* got 0.0"),
        ({"utilisation": math.nan}, "utilisation must be a finite number .* got nan"),
        ({"utilisation": [0.5, math.inf]}, "utilisation must be a finite number .* got inf"),
        ({"utilisation": [0.5, -0.5]}, "utilisation must be a finite number .* got -0.5"),
        ({"utilisation": [0.5, None]}, "utilisation must be a finite number .* got None"),
        ({"utilisation": [[0.5]]}, "utilisation must be a finite number .* got \\[0.5\\]"),
        ({"utilisation": []}, "utilisation is an empty list"),
        ({"utilisation": [0.5, 0.7, 0.5]}, "utilisation 0.5 is given twice"),
        ({"utilisation": "0.5"}, "utilisation must be a finite number .* got '0.5'"),
        ({"utilisation": None}, "exactly one of utilisation and rate_per_s, got neither"),
        ({"rate_per_s": 5.0}, "exactly one of utilisation and rate_per_s, got both"),
        ({"replicas": None}, "utilisation needs replicas"),
        ({"replicas": 0}, "replicas must be a whole number >= 1, got 0"),
        ({"mean_service_ms": 0}, "mean_service_ms must be a finite number .* got 0"),
        ({"mean_service_ms": None}, "mean_service_ms must be given, got None"),
        ({"service": "gama"}, "Unknown service 'gama'; choose from .* Did you mean 'gamma'"),
        ({"service": ["gamma", "expo"]}, "Unknown service 'expo'"),
        ({"service": 3}, "Unknown service '3'"),
        ({"service_cv": 2.0}, "service_cv is for lognormal and gamma; service 'exponential'"),
        ({"service": "gamma", "service_cv": -1.0}, "service_cv must be a finite number .* got -1.0"),
        ({"prefixes": -3}, "prefixes must be a whole number >= 0, got -3"),
        ({"sessions": True}, "sessions must be a whole number >= 0, got True"),
        ({"popularity": "zipfian"}, "Unknown popularity 'zipfian'; .* Did you mean 'zipf'"),
        ({"zipf_exponent": -0.5}, "zipf_exponent must be a finite number >= 0 .* got -0.5"),
        ({"session_prefix": "shared"}, "Unknown session_prefix 'shared'; choose from own, independent"),
    ],
)
def test_poisson__bad_input(change, message):
    with pytest.raises(InputError, match=message):
        Workload.poisson(**{"requests": 10, **BASE, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peak_to_mean": 0.5}, "peak_to_mean must be a finite number >= 1, got 0.5"),
        ({"peak_to_mean": [2, 20]}, "peak_to_mean must be at most 1 / burst_share = 10, got 20"),
        ({"burst_ms": 0}, "burst_ms must be a finite number > 0 .* got 0"),
        ({"burst_ms": 1e-9}, "burst_ms must be at least 0.00277778 here, got 1e-09"),
        ({"burst_ms": None}, "burst_ms must be given"),
        ({"burst_share": 1.0}, "burst_share must be a finite number .* < 1, got 1.0"),
    ],
)
def test_bursty__bad_input(change, message):
    with pytest.raises(InputError, match=message):
        Workload.bursty(**{"requests": 10, "peak_to_mean": 2, "burst_ms": 50, **BASE, **change})


def test_bursty__peak_may_be_one_over_share_despite_rounding():
    for n in range(2, 60):
        requests = Workload.bursty(50, peak_to_mean=n, burst_ms=50, burst_share=1 / n, **BASE).realise(n)
        assert np.isfinite(requests.arrival_ms).all()


@pytest.mark.parametrize("seed", [-1, 1.0, "1", None, True])
def test_realise__bad_seed(seed):
    with pytest.raises(InputError, match="seed must be a whole number >= 0"):
        WORKLOADS[0].realise(seed)


def test_fixed__wants_requests():
    with pytest.raises(InputError, match=r"must be a sweep\.Requests, got list"):
        Workload.fixed([{"arrival_ms": 0.0}])


@pytest.mark.parametrize(
    "content",
    [
        None,
        {},
        {"kind": "poisson"},
        {"kind": "poison", "parameters": {}},
        {"kind": [], "parameters": {}},
        {"kind": "poisson", "parameters": 5},
        {"kind": "poisson", "parameters": {"requests": 5, "rate_per_s": 5, "colour": 1}},
        {"kind": "bursty", "parameters": {"requests": 5, "rate_per_s": 5}},
        {"kind": "dplb_burst", "parameters": {"requests": 5}},
        {"kind": "fixed", "parameters": {"requests": {}}},
        {"kind": "fixed", "parameters": {"requests": 7}},
    ],
)
def test_dict__bad_content_is_an_input_error(content):
    with pytest.raises(InputError):
        Workload.from_dict(content)


values = st.none() | st.booleans() | st.integers(-2, 50) | st.floats() | st.text(max_size=4)
values |= st.sampled_from(["gamma", "zipf", "independent", "deterministic"]) | st.lists(values, max_size=3)
NAMES = [name for name in Workload.poisson.__annotations__ if name != "return"]
NAMES += ["peak_to_mean", "burst_ms", "burst_share"]


@given(st.dictionaries(st.sampled_from(NAMES), values, max_size=4), st.integers(0, 3))
def test_fuzz__gives_streams_or_an_input_error(changes, seed):
    bursts = {"peak_to_mean": 2.0, "burst_ms": 50.0}
    named = {"requests": 10, **BASE, **bursts, **changes}
    try:
        works = [Workload.bursty(**named)]
        works.append(Workload.poisson(**{k: v for k, v in named.items() if k not in (*bursts, "burst_share")}))
    except InputError:
        return
    for _, work in [point for given_work in works for point in given_work.points()]:
        requests = work.realise(seed)
        assert len(requests) == work.parameters["requests"]
        assert np.isfinite(requests.arrival_ms).all() and (np.diff(requests.arrival_ms) >= 0).all()
        assert np.isfinite(requests.service_ms).all() and (requests.service_ms >= 0).all()
        assert same_stream(requests, Workload.from_dict(json.loads(json.dumps(work.to_dict()))).realise(seed))
