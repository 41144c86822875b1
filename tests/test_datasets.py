import subprocess
import sys
import warnings

import numpy as np
import pytest
import xarray as xr

import sweep
from sweep import InputError
from sweep.stores.datasets import replace


@pytest.fixture(scope="module")
def ds():
    work = sweep.Workload.poisson(requests=50, utilisation=[0.5, 0.9], replicas=2, sessions=5, prefixes=5)
    fleet = sweep.Fleet.one_slow(replicas=2, heterogeneity=[0.0, 0.3])
    return sweep.run(work, fleet, policy=["round_robin", "locality_aware"], slack=[0, 5], seed=3, slo_ms=10.0)


@pytest.mark.parametrize("suffix", ["zarr", "nc"])
def test_round_trip__is_identical(ds, tmp_path, suffix):
    path = tmp_path / f"with space and é.{suffix}"
    sweep.write(ds, path)
    assert sweep.open(path).identical(ds)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_zarr__opens_with_plain_xarray_in_a_fresh_process_without_a_warning(ds, tmp_path):
    sweep.write(ds, tmp_path / "out.zarr")
    code = "import sys, xarray as xr; ds = xr.open_zarr(sys.argv[1]).load(); print(ds.policy.values.tolist())"
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "out.zarr")], capture_output=True, text=True
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.strip() == "['round_robin', 'locality_aware']"


def test_workload_and_fleet__can_be_rebuilt_from_the_attributes(ds, tmp_path):
    import json

    sweep.write(ds, tmp_path / "out.zarr")
    attrs = sweep.open(tmp_path / "out.zarr").attrs
    work = sweep.Workload.from_dict(json.loads(attrs["workload"]))
    fleet = sweep.Fleet.from_dict(json.loads(attrs["fleet"]))
    settings = json.loads(attrs["settings"])
    again = sweep.run(work, fleet, policy=["round_robin", "locality_aware"], slack=[0, 5], seed=3, **settings)
    assert again.identical(ds)


def test_existing_path__is_refused_and_untouched(ds, tmp_path):
    path = tmp_path / "out.zarr"
    path.mkdir()
    (path / "mine").write_text("kept")
    with pytest.raises(InputError, match="exists already and is not overwritten"):
        sweep.write(ds, path)
    assert (path / "mine").read_text() == "kept"


@pytest.mark.parametrize("name", ["out.csv", "out", "missing/out.zarr"])
def test_bad_path__is_one_clear_sentence(ds, tmp_path, name):
    with pytest.raises(InputError, match=r"must end in|does not exist"):
        sweep.write(ds, tmp_path / name)
    with pytest.raises(InputError, match=r"There is no Dataset|ends in .zarr or .nc"):
        sweep.open(tmp_path / name)


def test_failure__leaves_what_was_there_and_no_partial_file(ds, tmp_path, monkeypatch):
    path = tmp_path / "out.zarr"
    sweep.write(ds, path)

    def full(self, *args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(xr.Dataset, "to_zarr", full)
    with pytest.raises(OSError, match="No space"):
        replace(ds.isel(seed=[0]), path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.zarr"]
    assert sweep.open(path).identical(ds)


def test_netcdf_without_its_extra__says_what_to_install(ds, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5netcdf", None)
    with pytest.raises(InputError, match=r"sweep\[netcdf\]"):
        sweep.write(ds, tmp_path / "out.nc")
    assert not list(tmp_path.iterdir())


def test_integers__stay_integers(ds, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sweep.write(ds, tmp_path / "out.zarr")
        assert sweep.open(tmp_path / "out.zarr").request_count.dtype == np.int64
