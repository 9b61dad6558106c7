"""Kernels are run by Triton's interpreter: it has to be asked for before anything imports Triton."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

sys.path.insert(0, str(Path(__file__).parent))
