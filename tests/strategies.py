"""Hypothesis strategies for request streams and fleets that provoke ties, gaps, bursts and empty cases."""

import random
from typing import NamedTuple

from hypothesis import strategies as st

#: Around the width of a machine word, where a cache mask kept in words of 64 replicas would go wrong.
REPLICAS = (1, 2, 3, 4, 5, 63, 64, 65, 256)

# Few whole numbers make equal arrivals and equal waits likely; floats make rounding visible.
_TIMES = st.one_of(st.integers(0, 12).map(float), st.floats(0.0, 30.0))
_SERVICES = st.one_of(st.just(0.0), st.integers(1, 9).map(float), st.floats(0.0, 40.0))
_KEYS = st.one_of(st.none(), st.integers(0, 4), st.sampled_from(["chat", "code"]))
_TOKENS = st.one_of(st.integers(1, 250), st.integers(0, 3))


@st.composite
def streams(draw, max_size=25):
    """Return the records of a short stream, every value drawn (and shrunk) on its own."""
    rows = draw(st.lists(st.tuples(_TIMES, _SERVICES, _KEYS, _KEYS, _TOKENS, _TOKENS), max_size=max_size))
    return [
        {
            "request_id": index,
            "arrival_ms": arrival,
            "service_ms": service,
            "prefix_key": prefix,
            "session_id": session,
            "prompt_tokens": prompt,
            "output_tokens": output,
        }
        for index, (arrival, service, prefix, session, prompt, output) in enumerate(rows)
    ]


class Crowd(NamedTuple):
    """A long stream by what decides it, which is also what a failing test shows of it."""

    size: int
    together: int  # requests that arrive at one time
    exact: bool  # whole numbers only: many exact ties
    prefixes: int
    sessions: int
    seed: int

    def records(self):
        source = random.Random(self.seed)

        def key(count):
            return source.randrange(count) if count and source.random() < 0.8 else None

        records = []
        arrival = 0.0
        for index in range(self.size):
            if index % self.together == 0:
                arrival += source.randrange(6) if self.exact else source.expovariate(0.2)
            records.append(
                {
                    "request_id": index,
                    "arrival_ms": arrival,
                    "service_ms": float(source.randrange(30)) if self.exact else source.expovariate(0.05),
                    "prefix_key": key(self.prefixes),
                    "session_id": key(self.sessions),
                    "prompt_tokens": source.randrange(1, 200),
                    "output_tokens": source.randrange(50),
                }
            )
        return records


def crowds(min_size=0):
    """Return streams long and crowded enough to reach every replica of a large fleet."""
    keys = st.sampled_from([0, 1, 3, 40])
    return st.builds(
        Crowd,
        size=st.integers(min_size, 300),
        together=st.sampled_from([1, 3, 100, 1000]),
        exact=st.booleans(),
        prefixes=keys,
        sessions=keys,
        seed=st.integers(0, 2**32),
    )


def speeds(replicas):
    """Return a vector of replica speeds, often with equal ones."""
    return st.one_of(
        st.just([1.0] * replicas),
        st.lists(
            st.one_of(st.sampled_from([1.0, 0.5, 0.3, 1.2]), st.floats(0.05, 8.0)),
            min_size=replicas,
            max_size=replicas,
        ),
    )


def fleets(rows):
    """Return `rows` vectors of speeds for one number of replicas, small numbers more often."""
    counts = st.one_of(st.integers(1, 5), st.sampled_from(REPLICAS))
    return counts.flatmap(lambda replicas: st.lists(speeds(replicas), min_size=rows, max_size=rows))


def slacks():
    """Return different slacks: none, without bound, and whole numbers that equal differences of waits."""
    some = st.one_of(st.sampled_from([0.0, float("inf")]), st.integers(0, 30).map(float), st.floats(0.0, 60.0))
    return st.lists(some, min_size=1, max_size=5, unique=True)


def speedups():
    """Return shares of the service time that a cache hit saves."""
    return st.one_of(st.sampled_from([0.0, 0.3, 0.5]), st.floats(0.0, 0.99))
