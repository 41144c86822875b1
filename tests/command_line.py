"""What tests of the command line share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRACE = ROOT.parent / "shared" / "traces" / "azure" / "AzureLLMInferenceTrace_conv.csv"
SMALL = ("--requests", "60", "--seeds", "3", "--sessions", "9", "--prefixes", "9")

Said = tuple[int, str, str]
Call = Callable[..., Said]


def process(*arguments: str, **settings: Any) -> subprocess.Popen[str]:
    """Start `python -m sweep ARGUMENTS` with its streams as pipes."""
    command = [sys.executable, "-m", "sweep", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **settings,
    )
