"""The torch runner on GPUs that do not exist: torch's calls are those of torch, the products are done by the CPU.

Run as a script under torchrun, with the number of GPUs as first argument. Every call that is faked is checked against
the signature of the real one.
"""

from __future__ import annotations

import inspect
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from sweep.torch_runner.command import main

current: list[int] = []


class Event:
    """The moment at which it is recorded; the "device" has by then done what was started."""

    def __init__(self, **settings: Any) -> None:
        inspect.signature(RealEvent.__new__).bind(RealEvent, **settings)
        self.timed = settings.get("enable_timing", False)
        self.at = 0.0

    def record(self) -> None:
        assert current, "an event is recorded on the current device"
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        assert self.at

    def elapsed_time(self, end: Event) -> float:
        assert self.timed and end.timed and end.at >= self.at > 0
        return 1e3 * (end.at - self.at)


def set_device(device: int) -> None:
    assert 0 <= device < torch.cuda.device_count()
    current[:] = [device]


def init_process_group(*arguments: Any, **settings: Any) -> None:
    found = signature.bind(*arguments, **settings).arguments
    if found["backend"] == "nccl":
        assert found["device_id"] == torch.device("cuda", int(found["device_id"].index))
    real_init("gloo", timeout=found["timeout"])


def on_the_cpu(make: Any) -> Any:
    """Return a function that makes what belongs on a GPU on the CPU, after a look at which GPU it is."""

    def made(*arguments: Any, **settings: Any) -> Any:
        device = torch.device(settings.get("device") or "cpu")
        if device.type == "cuda":
            assert 0 <= device.index < torch.cuda.device_count()
            del settings["device"]
        return make(*arguments, **settings)

    return made


RealEvent = torch.cuda.Event
real_init, signature = dist.init_process_group, inspect.signature(dist.init_process_group)
count = int(sys.argv.pop(1))
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: count
torch.cuda.get_device_name = lambda device: f"GPU of type {device}"
torch.cuda.set_device = set_device
torch.cuda.synchronize = lambda device: None
torch.cuda.Event = Event
torch.cuda.nccl.version = lambda: (2, 27, 3)
dist.init_process_group = init_process_group
for name in ("ones", "randn", "empty"):
    setattr(torch, name, on_the_cpu(getattr(torch, name)))

if __name__ == "__main__":
    main()
