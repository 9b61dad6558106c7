"""Tokenizer libraries that are no candidates: as second opinions, and as real faults. See `__main__`."""
