"""Stands in for the sglang-kernel wheel: without its operators SGLang takes the paths that are plain torch.

Only what SGLang asks for at import time is here, and the one operator that its CPU scheduler calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def assign_req_to_token_pool_cpu(
    req_pool_indices: Any, req_to_token: Any, start_offset: Any, end_offset: Any, out_cache_loc: Any, *_: object
) -> None:
    """Write each request's next slice of `out_cache_loc` into its row, from its start to its end."""
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        slots = out_cache_loc[taken : taken + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        taken += end - start


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU")

    return missing
