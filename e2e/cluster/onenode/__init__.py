"""A real Kubernetes of one node for the end-to-end tests, in a network namespace of its own; and its API tier alone.

Neither systemd nor Docker nor a registry is needed; the whole cluster needs root, the API tier doesn't. `ctl` and `run`
beside this package are its command lines, `fixtures` its pytest fixtures.
"""
