"""Every tokenizer file of the catalog under three releases of the reference's library: see `__main__`."""
