"""Twin of `toktier_kernels.merge`: the tokens of pieces that aren't one token, by rank."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from toktier_kernels.ranks import PAD, merge_rows
from toktier_kernels.vocabulary import Vocabulary

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]


def merge(text: U8, pieces: I32, entries: I32, token: U32, vocabulary: Vocabulary) -> None:
    """`token` at the start of each token of the pieces [pieces[k], pieces[k + 1]) for k in `entries`, in place."""
    start = pieces[entries].astype(np.int64)
    length = pieces[entries + 1] - start
    for width in np.unique(length):
        rows = start[length == width, None]
        ids, column = merge_rows(vocabulary, vocabulary.byte_id[text[rows + np.arange(width)]])
        at = rows + column
        token[at[ids != PAD]] = ids[ids != PAD]
