"""Reserved: see README, map of folders."""
