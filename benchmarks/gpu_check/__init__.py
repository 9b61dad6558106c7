"""One GPU: are the kernels exact there, and how fast. No time is shown unless everything is exact."""
