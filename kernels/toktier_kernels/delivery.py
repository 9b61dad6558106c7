"""What an encode delivers: arrays on the device and on the host, never lists.

An `Encoded` owns its memory: no later call changes it. Its device tensors belong to the stream that was current for
the caller; host arrays that came with the answer cost nothing more, others are copied when asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .batch import Ids

Ends = NDArray[np.uint32] | NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Facts:
    """How the answer came about.

    text_bytes        length of the text that the tokens cover: the normalized one, where it had to be
    normalized_bytes  of these, what the CPU's normalizer gave
    overlong_bytes    of these, what the CPU encoded
    synchronizations  times the host waited for the device
    """

    text_bytes: int = 0
    normalized_bytes: int = 0
    overlong_bytes: int = 0
    synchronizations: int = 0


@dataclass(slots=True)
class Encoded:
    """The IDs of all documents, in order.

    ids              u32[tokens] on the device
    ends             u32 or u64[tokens] on the device: the byte behind each token, counted from the first byte of the
                     first document, in the normalized text; None unless asked for
    document_tokens  i64[documents] on the host: tokens of each
    document_bytes   i64[documents] on the host: (normalized) bytes of each
    """

    ids: torch.Tensor
    ends: torch.Tensor | None
    document_tokens: NDArray[np.int64]
    document_bytes: NDArray[np.int64]
    facts: Facts
    host_ids: Ids | None = field(default=None, repr=False)
    host_ends: Ends | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    def numpy(self) -> Ids:
        """The IDs on the host, u32[tokens]. The array is the answer's own; of page-locked memory on a GPU's host."""
        if self.host_ids is None:
            self.host_ids = self.ids.cpu().numpy()
        return self.host_ids

    def numpy_ends(self) -> Ends:
        """The ends on the host; raises `ValueError` if none were asked for."""
        if self.ends is None:
            raise ValueError("no ends were asked for")
        if self.host_ends is None:
            self.host_ends = self.ends.cpu().numpy()
        return self.host_ends

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """The IDs on the device, shared, not copied; `options` are those of the array API standard."""
        return self.ids.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, int]:
        kind, index = self.ids.__dlpack_device__()
        return kind, index

    def tolist(self) -> list[int]:
        """Python integers: some 20 ns and 36 bytes each, for whoever can't take an array."""
        integers: list[int] = self.numpy().tolist()
        return integers
