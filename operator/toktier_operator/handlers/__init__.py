"""What events and the clock set going: observe, decide, apply, write the status."""
