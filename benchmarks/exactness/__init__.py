"""`make exactness`: comparisons with the reference at scale, resumable; what is counted is in docs/exactness.md."""
