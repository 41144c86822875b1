"""What importing costs: no heavy package, and no second compilation."""

import os
import subprocess
import sys

HEAVY = ("matplotlib", "seaborn", "jinja2", "zarr", "dask", "torch", "h5netcdf", "scipy.stats", "click")

COMPILE = """
import sweep
from sweep.kernels import statistics, timeline, token_step
work = sweep.Workload.poisson(requests=20, utilisation=0.5, replicas=2, sessions=3, prefixes=3)
sweep.run(work, sweep.Fleet.fixed([1.0, 0.5]), policy=["round_robin", "queue_aware", "locality_aware"], seed=2)
sweep.run(sweep.Workload.dplb_burst(), sweep.Fleet.fixed([1.0, 0.5]), policy="least_load", seed=2, engine="token_step")
kernels = (timeline.run_lanes, statistics.cell_statistics, token_step.run_token_cell)
print(*(f"{sum(k.stats.cache_hits.values())}/{sum(k.stats.cache_misses.values())}" for k in kernels))
"""


def run(code, **environment):
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_import__loads_no_heavy_package():
    loaded = run(f"import sys, sweep; print([name for name in {HEAVY} if name in sys.modules])")
    assert loaded == "[]"


def test_import__leaves_the_cache_folder_of_other_packages_alone():
    assert (
        run("import numba; before = numba.config.CACHE_DIR; import sweep; print(numba.config.CACHE_DIR == before)")
        == "True"
    )


def test_second_process__does_not_compile_again(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    assert run(COMPILE, **environment) == "0/1 0/1 0/1"
    assert run(COMPILE, **environment) == "1/0 1/0 1/0"


def test_read_only_home__falls_back_and_still_runs(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    environment = {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    assert run("import sweep.kernels.jit as jit; print(jit._FOLDER)", **environment).startswith(str(tmp_path))


def test_cache_folder__is_one_for_each_version_of_numba(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    other = "import numba; numba.__version__ = '0.0'; "
    folders = {
        run(f"{before}import sweep.kernels.jit as jit; print(jit._FOLDER)", **environment) for before in ("", other)
    }
    assert len(folders) == 2
