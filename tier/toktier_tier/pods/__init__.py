"""Many pods as one tier: who owns a session, how a request reaches its owner, and how sessions move.

    ring             the owner of (tenant, session), by rendezvous hashing
    membership       the pods: a fixed list, DNS; `endpoint_slices` for Kubernetes
    health           those of them that say they are ready
    forward          calls to other pods: channels, breakers, marks
    router           here or there, for each request
    held             sessions that can move: revisions that no two lives of a session share
    drain            hands sessions over to their owners
    credentials      what this pod shows to the others
    assembly         all of it, as the settings say

Rules that keep IDs right whatever the pods believe of each other:
 1. A request that was forwarded once is served where it arrives, or refused with the name of the pod that its session
    was handed to. It is never forwarded from there.
 2. Every life of a session, from one opening to the next, counts its revisions from a random start. So a stale copy on
    any pod fails a request's `expected_revision`; Append and Edit must name one. A request that fails so at one pod is
    for another life, and is asked of the others that may have it.
 3. A session is taken off this pod before it is sent. It comes back only if the other pod has surely not taken it.
 4. A pod takes a session only if it has none of that name, or the same one at that revision or a later one.
 So of one life of a session at most one copy is ever served.
"""
