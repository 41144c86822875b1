"""Every variable is described once, and the README's tables say what the registry says."""

from pathlib import Path

import pytest

import sweep
from sweep.kernels import statistics, token_step
from sweep.variables import FAILURES, MIGRATIONS, OF_BLOCKS, VARIABLES

README = Path(__file__).parents[1] / "README.md"


def rows(engine):
    """The rows of the README's table of an engine."""
    more = [*MIGRATIONS.values(), *FAILURES.values()] if engine == "timeline" else []
    for variable in [*VARIABLES[engine].values(), *more]:
        arrow = {"lower": "↓", "higher": "↑", None: ""}[variable.better]
        where = f" ({', '.join(variable.dims)})" if variable.dims else ""
        yield f"| `{variable.name}`{where} | {variable.units} | {arrow} | {variable.comment} |"


@pytest.mark.parametrize("engine", list(VARIABLES))
def test_readme__lists_every_variable(engine):
    text = README.read_text(encoding="utf-8")
    missing = [row for row in rows(engine) if row not in text]
    assert not missing, "add to the README:\n" + "\n".join(missing)


def test_kernels__fill_exactly_the_scalar_variables():
    scalars = {
        engine: {name for name, v in known.items() if not v.dims and name not in OF_BLOCKS}
        for engine, known in VARIABLES.items()
    }
    assert set(statistics.COLUMNS) == scalars["timeline"]
    assert set(token_step.COLUMNS) == scalars["token_step"]


def test_dataset__carries_the_attributes_and_types_of_the_registry():
    work = sweep.Workload.dplb_burst()
    for engine, policy in (("timeline", "queue_aware"), ("token_step", "least_load")):
        given = {"slo_ms": 20.0, "cache_blocks": 5} if engine == "timeline" else {}
        ds = sweep.run(work, sweep.Fleet.fixed([1.0, 0.5]), policy=policy, seed=2, engine=engine, **given)
        assert list(ds.data_vars) == list(VARIABLES[engine])
        for name, variable in VARIABLES[engine].items():
            assert ds[name].attrs == variable.attrs
            assert ds[name].dims == ("policy", "slack", "heterogeneity", "seed", *variable.dims)
            assert ds[name].dtype.kind == ("i" if variable.integer else "f")
