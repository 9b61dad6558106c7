"""A tier under the mixture of a fleet of coding agents: latency and throughput up to saturation, IDs checked."""
