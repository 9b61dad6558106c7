"""Being written by the second test writer."""
