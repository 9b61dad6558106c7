"""The memory of many sessions beside the stated model, and whether it stays flat while they come and go."""
