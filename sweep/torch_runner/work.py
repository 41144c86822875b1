"""The work of a rank: square matrix products, one after the other, and the time they take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from sweep.errors import InputError
from sweep.torch_runner.devices import Device

#: Shorter units are of the order of what starting and timing them costs.
SHORTEST_UNIT_MS = 0.02
_LONGEST_PRODUCT_MS = 1000.0
#: The side of the matrices tried first; the time of a product that tells how long a larger one will take; and how often
#: it has to be found too long.
_FIRST_SIDE, _TELLING_MS, _TRIES = 128, 20.0, 3
_CALIBRATION_MS = 60.0
_BATCHES = 5
DEFAULT_DTYPE = {"cuda": "bfloat16", "cpu": "float32"}


class Elapsed(NamedTuple):
    """Device time [ms] and, on a CPU rank, the processor time of its thread [ms]."""

    ms: float
    cpu_ms: float


class Work:
    """Matrix products on a device.

    Raises
    ------
    InputError
        For a type that torch does not have or the device cannot multiply, or matrices too large for its memory or its
        pace.
    """

    def __init__(self, device: Device, dim: int, dtype: str) -> None:
        import torch

        self.device = device
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
            raise InputError(
                f"dtype {dtype!r} is not a floating-point type of torch; common ones are float32, bfloat16 and float16."
            )
        self._mm: Callable[..., Any] = torch.mm
        side = min(dim, _FIRST_SIDE)
        try:
            self._make(side, kind, dim)
            while side < dim:
                side = min(2 * side, dim)
                self._make(side, kind, dim)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            first = str(error).strip().partition("\n")[0]
            raise InputError(
                f"The device ({device.kind}) cannot multiply {dim} x {dim} matrices of dtype {dtype!r}: {first}"
            ) from error

    def _make(self, side: int, kind: Any, dim: int) -> None:
        """Make matrices and multiply them; refuse when those of side `dim` would take too long."""
        import torch

        place = self.device.torch_device
        self.left, self.right = (
            (torch.randn(side, side, device=place, dtype=torch.float32) / side**0.5).to(kind) for _ in range(2)
        )
        self.out = torch.empty(side, side, device=place, dtype=kind)
        # The first product starts the library, and any may lose its core for a moment.
        for _ in range(_TRIES):
            took = self.timed([1]).ms
            expected = took * (dim / side) ** 3
            if took <= _TELLING_MS or expected <= _LONGEST_PRODUCT_MS:
                return
        # A rank busy with one product could not be told from one that hangs. Types without a fast path exist.
        raise InputError(
            f"One product of {dim} x {dim} matrices of dtype {str(kind).removeprefix('torch.')!r} takes about "
            f"{expected / 1000:.1f} s on this device ({self.device.kind}); choose a smaller --compute-dim or another "
            "--dtype."
        )

    def run(self, products: int) -> None:
        """Start so many products; on a CPU they are done on return, on a GPU after `wait`."""
        for _ in range(products):
            self._mm(self.left, self.right, out=self.out)

    def wait(self) -> None:
        """Return when the device has done all that was started."""
        import torch

        if self.device.kind == "cuda":
            torch.cuda.synchronize(self.device.slot)

    def timed(self, queue: Iterable[int], beat: Callable[[], None] = lambda: None) -> Elapsed:
        """Run a queue of requests, each so many products, and return how long the device took."""
        import torch

        if self.device.kind == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for products in queue:
                self.run(products)
                beat()
            last.record()
            last.synchronize()
            return Elapsed(float(first.elapsed_time(last)), float("nan"))
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        for products in queue:
            self.run(products)
            beat()
        return Elapsed((time.perf_counter_ns() - wall) / 1e6, (time.thread_time_ns() - cpu) / 1e6)

    def product_ms(self) -> float:
        """Return the time of one product: the median of a few batches after a warm-up."""
        count, took = 1, 0.0
        self.timed([3])
        while took < _CALIBRATION_MS / _BATCHES:
            took = self.timed([count]).ms
            if took < _CALIBRATION_MS / _BATCHES:
                count *= 2
        return statistics.median(self.timed([count]).ms / count for _ in range(_BATCHES))


class Unit(NamedTuple):
    """One cost unit: how many products it is, and the times of a product and of a unit [ms]."""

    products: int
    product_ms: float
    ms: float


def calibrated_unit(product_ms: float, unit_ms: float | None, products: int | None) -> Unit:
    """Return the cost unit for a time or a number of products asked for.

    Raises
    ------
    InputError
        When the unit is so short that its timing is noise.
    """
    asked = 10.0 if unit_ms is None else unit_ms
    count = products if products is not None else max(1, round(asked / product_ms))
    unit = Unit(count, product_ms, count * product_ms)
    if unit.ms < SHORTEST_UNIT_MS:
        raise InputError(
            f"A cost unit of {count} product{'' if count == 1 else 's'} takes {1000 * unit.ms:.3g} us here, so its "
            f"timing is noise; reach {1000 * SHORTEST_UNIT_MS:g} us by --unit-ms, --products-per-unit or --compute-dim."
        )
    return unit
