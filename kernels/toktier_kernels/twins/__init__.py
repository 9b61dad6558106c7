"""What each step computes, in plain NumPy: a kernel equals its twin. Imports NumPy only."""
