"""The devices of this host: which a rank uses, what the hardware is, what evidence is possible here."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep.torch_runner.result import CPU_PROFILE, CUDA_PROFILE

INSTALL = 'pip install "sweep[torch]"'
CPU_EVIDENCE, ONE_GPU, MANY_GPUS = "cpu_mechanism", "single_gpu_mechanism", "real_multi_gpu_mechanism_benchmark"


def has_torch() -> bool:
    """Return whether torch is installed, without importing it."""
    return importlib.util.find_spec("torch") is not None


def cores() -> list[int]:
    """Return the processor cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


@dataclass(frozen=True)
class Device:
    """What one rank computes on.

    ``slot`` is the GPU or core among ``slots``, ``turn`` its place among the ranks that share it, out of ``turns``;
    ``cores`` are those that the process had before it was pinned to one.
    """

    kind: str
    slot: int
    slots: int
    turn: int
    turns: int
    cores: tuple[int, ...]

    @classmethod
    def of(cls, local_rank: int, local_size: int) -> Device:
        """Return the device of a rank: a GPU where there are any, else a core."""
        import torch

        kind = "cuda" if torch.cuda.is_available() else "cpu"
        found = tuple(cores())
        slots = torch.cuda.device_count() if kind == "cuda" else len(found)
        return cls(kind, local_rank % slots, slots, local_rank // slots, -(-local_size // slots), found)

    @property
    def torch_device(self) -> Any:
        """Return the device as torch names it."""
        import torch

        return torch.device("cuda", self.slot) if self.kind == "cuda" else torch.device("cpu")

    @property
    def evidence(self) -> str:
        """Return what a measurement here can be evidence of, at best."""
        return CPU_EVIDENCE if self.kind == "cpu" else ONE_GPU

    @property
    def profile(self) -> str:
        """Return the environment profile of the result."""
        return CUDA_PROFILE if self.kind == "cuda" else CPU_PROFILE

    @property
    def name(self) -> str:
        """Return the name of the hardware that this rank computes on, alone or shared."""
        import torch

        if self.kind == "cuda":
            return f"{torch.cuda.get_device_name(self.slot)} ({platform.node()}:{self.slot})"
        return f"{host_cpu()} (core {self.cores[self.slot]})"

    def take(self) -> None:
        """Make the device this thread's own: the GPU is made current, or the thread is pinned to its core."""
        import torch

        if self.kind == "cuda":
            torch.cuda.set_device(self.slot)
        else:
            torch.set_num_threads(1)
            pin({self.cores[self.slot]})


def pin(chosen: Iterable[int]) -> None:
    """Let this thread, and those that it starts, run on these cores only, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, chosen)


def evidence_level(device: Device, names: list[str]) -> str:
    """Return the evidence level of a run whose ranks computed on the devices named."""
    if device.kind == "cpu":
        return CPU_EVIDENCE
    return MANY_GPUS if 1 < len(set(names)) == len(names) else ONE_GPU


def host_cpu() -> str:
    """Return the processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def unknown_hardware(size: int) -> dict[str, Any]:
    """Return what is known of the hardware before the ranks have met."""
    unknown = ("torch", "cuda", "backend", "backend_version", "driver", "ranks_share_device")
    return {
        "device_names": [],
        "world_size": size,
        "host_cpu": host_cpu(),
        "host_cores": os.cpu_count() or 1,
        **dict.fromkeys(unknown),
    }


def hardware(device: Device, names: list[str], nccl: bool) -> dict[str, Any]:
    """Return the hardware of a run, as the result file holds it; `names` are the ranks' devices."""
    import torch

    version = None
    if nccl:
        version = ".".join(map(str, torch.cuda.nccl.version()))
    return unknown_hardware(len(names)) | {
        "device_names": names,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "backend": "nccl" if nccl else "gloo",
        "backend_version": version,
        "driver": _driver() if device.kind == "cuda" else None,
        "ranks_share_device": len(set(names)) < len(names),
    }


def _driver() -> str | None:
    """Return the version of the NVIDIA driver, from the file in which the kernel module names it."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").split()
    except OSError:
        return None
    numbers = [word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()]
    return numbers[0] if numbers else None


def preflight() -> str:
    """Return what this machine has and what evidence a run on it can give."""
    found = cores()
    lines = [f"Processor:  {host_cpu()}, {len(found)} core{'' if len(found) == 1 else 's'} for this process"]
    if not has_torch():
        return "\n".join([*lines, f"torch:      not installed; {INSTALL}", "Evidence:   dry_run only"])
    import torch
    import torch.distributed as dist

    lines.append(f"torch:      {torch.__version__}, CUDA {torch.version.cuda or 'none'}")
    backends = [name for name, has in (("nccl", dist.is_nccl_available()), ("gloo", dist.is_gloo_available())) if has]
    lines.append(f"Back ends:  {', '.join(backends) or 'none'}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(count)) or "none"
    lines.append(f"GPUs:       {names}" + (f", driver {_driver()}" if count else ""))
    if count > 1:
        lines.append(f"Evidence:   {MANY_GPUS} with 2 to {count} ranks, {ONE_GPU} with more (in turn on each GPU)")
    elif count:
        lines.append(f"Evidence:   {ONE_GPU}: ranks run in turn on the one GPU")
    else:
        lines.append(f"Evidence:   {CPU_EVIDENCE}: up to {len(found)} ranks at once, more in turn")
    return "\n".join(lines)
