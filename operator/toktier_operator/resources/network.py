"""How a tier is reached: Services, the policy of who may, and the route of a gateway."""

from __future__ import annotations

from ..api.toktier_spec import TokTierSpec
from . import names, paths
from .owned import Json, Owner


def headless_service(owner: Owner) -> Json:
    """What the pods find each other by: the ready ones."""
    return owner.manifest("v1", "Service", names.headless_service(owner.name)) | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": False,
            "selector": names.tier_selector(owner.name),
            "ports": [_port("grpc", paths.GRPC_PORT), _port("http", paths.HTTP_PORT)],
        }
    }


def service(owner: Owner, spec: TokTierSpec) -> Json:
    given = spec.service
    return owner.manifest("v1", "Service", owner.name, given.annotations) | {
        "spec": {
            "type": given.type,
            "sessionAffinity": given.session_affinity,
            "selector": names.tier_selector(owner.name),
            "ports": [_port("http", given.ports.http), _port("grpc", given.ports.grpc)],
        }
    }


def network_policy(owner: Owner, spec: TokTierSpec) -> Json | None:
    """Who may connect. Nothing is said of where pods connect to: the API server's address, which they need, can't be
    named in a policy.
    """
    if not spec.network_policy.enabled:
        return None
    http, grpc = ({"port": number, "protocol": "TCP"} for number in (paths.HTTP_PORT, paths.GRPC_PORT))
    pods = {"matchLabels": names.tier_selector(owner.name)}
    peers = [dict(each) for each in spec.network_policy.peers] or [{"podSelector": {}}]
    return owner.manifest("networking.k8s.io/v1", "NetworkPolicy", owner.name) | {
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": peers, "ports": [http, grpc]},
                {"from": [{"podSelector": pods}], "ports": [grpc]},
            ],
        }
    }


def http_route(owner: Owner, spec: TokTierSpec) -> Json | None:
    gateway = spec.gateway
    if gateway is None:
        return None
    route: Json = {
        "parentRefs": [dict(each) for each in gateway.parent_refs],
        "rules": [{"backendRefs": [{"name": owner.name, "port": spec.service.ports.http}]}],
    }
    if gateway.hostnames:
        route["hostnames"] = list(gateway.hostnames)
    return owner.manifest("gateway.networking.k8s.io/v1", "HTTPRoute", owner.name) | {"spec": route}


def _port(name: str, number: int) -> Json:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}
