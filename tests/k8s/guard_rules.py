"""Rules about what surrounds the Ray cluster: ports, networks, users, secrets, drains. Each returns what breaks it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from serve_app.cli.up import START_LIMIT
from tests.k8s.manifests import Deployed, Object

#: Seconds that Serve has for a replacement before it stops a replica on a node that is drained.
REPLACEMENT = 30
#: Seconds between Ray's end and Kubernetes' patience.
SLACK = 20
#: Seconds for which a network may be away without costing a node, and that an answer over it may take.
SHORT_CUT = 10
FAR = 0.5

#: Ports of the Ray cluster that others than its own pods may reach.
OPEN = {
    "disco-clients": {8000},
    "disco-operator": {8265, 8000},
    "disco-monitoring": {8080, 9101},
}


def one_port_for_http(d: Deployed) -> Iterator[str]:
    port = d.configuration.port
    for pod in d.ray_pods():
        if pod.port("serve") != port:
            yield f"{pod.name}: the port `serve` is {pod.port('serve')}, and the configuration listens on {port}"
    named = d.environment.get("RAY_SERVE_HAPROXY_METRICS_PORT", "9101")
    if str(d.ray_pods()[1].port("haproxy")) != named:
        yield f"router: the port `haproxy` is not HAProxy's {named}"


def services_lead_somewhere(d: Deployed) -> Iterator[str]:
    for service in d.of("Service"):
        name, pods = service["metadata"]["name"], d.selected(service["spec"]["selector"])
        if not pods:
            yield f"Service {name}: selects no pod"
        for port in service["spec"]["ports"]:
            yield from (
                f"Service {name}: {pod.name} has no port {port['targetPort']}"
                for pod in pods
                if pod.port(port["targetPort"]) is None
            )


def clients_reach_the_routers_only(d: Deployed) -> Iterator[str]:
    names = [pod.name for pod in d.selected(d.named("Service", "disco")["spec"]["selector"])]
    if names != ["router"]:
        yield f"Service disco: leads to {', '.join(names)}"
    for kind, backends in (("Ingress", _ingress_backends(d)), ("HTTPRoute", _route_backends(d))):
        services = {s["metadata"]["name"]: {p["name"]: p["port"] for p in s["spec"]["ports"]} for s in d.of("Service")}
        for service, port in backends:
            if service != "disco" or port not in {*services["disco"], *services["disco"].values()}:
                yield f"{kind}: {service} has no port {port}"


def policies_close_every_pod(d: Deployed) -> Iterator[str]:
    """A pod that no policy selects is open to everybody."""
    for pod in d.pods():
        policies = [p for p in d.of("NetworkPolicy") if pod in d.selected(p["spec"]["podSelector"])]
        if not any("Egress" in policy["spec"]["policyTypes"] for policy in policies):
            yield f"{pod.name}: may connect anywhere"
        if not any("Ingress" in policy["spec"]["policyTypes"] for policy in policies):
            yield f"{pod.name}: may be reached from anywhere"


def policies_open_what_is_meant(d: Deployed) -> Iterator[str]:
    for policy in d.of("NetworkPolicy"):
        name, spec = policy["metadata"]["name"], policy["spec"]
        opened: set[int] = set()
        for rule in spec.get("ingress", ()):
            sources = rule.get("from", [])
            if not sources:
                yield f"NetworkPolicy {name}: lets everybody in"
            if all("podSelector" in source and "namespaceSelector" not in source for source in sources):
                continue
            if not rule.get("ports"):
                yield f"NetworkPolicy {name}: opens every port to another namespace"
            for port in rule.get("ports", ()):
                found = {pod.port(port["port"]) for pod in d.selected(spec["podSelector"])} - {None}
                if not found:
                    yield f"NetworkPolicy {name}: no pod has the port {port['port']}"
                opened |= {number for number in found if number is not None}
        if opened != OPEN.get(name, set()):
            yield f"NetworkPolicy {name}: opens {sorted(opened)}, meant are {sorted(OPEN.get(name, set()))}"


def ray_asks_for_its_token(d: Deployed) -> Iterator[str]:
    if d.cluster.get("authOptions", {}).get("mode") != "token":
        yield "authOptions.mode: must be token; the routers refuse to start otherwise"
    for pod in d.ray_pods():
        for env in pod.main.get("env", ()):
            if env["name"].startswith("RAY_AUTH"):
                yield f"{pod.name}: {env['name']} is KubeRay's to set"


def nobody_is_root(d: Deployed) -> Iterator[str]:
    contexts: list[tuple[str, Any]] = [("autoscaler", d.cluster["autoscalerOptions"].get("securityContext", {}))]
    for pod in d.pods():
        of_pod = pod.spec.get("securityContext", {})
        if not of_pod.get("runAsNonRoot") or not of_pod.get("runAsUser"):
            yield f"{pod.name}: must say runAsNonRoot and runAsUser"
        if of_pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{pod.name}: must use the runtime's seccomp profile"
        contexts += [(f"{pod.name}/{c['name']}", c.get("securityContext", {})) for c in pod.containers]
    for where, context in contexts:
        if context.get("allowPrivilegeEscalation") is not False or context.get("capabilities", {}).get("drop") != [
            "ALL"
        ]:
            yield f"{where}: must drop all capabilities and never gain any"


def resources_are_bounded(d: Deployed) -> Iterator[str]:
    for pod in d.pods():
        for container in pod.containers:
            for kind in ("requests", "limits"):
                if missing := {"cpu", "memory"} - set(container.get("resources", {}).get(kind, ())):
                    yield f"{pod.name}/{container['name']}: no {kind} of {' and '.join(sorted(missing))}"


def secrets_are_named_and_not_shipped(d: Deployed) -> Iterator[str]:
    """The routers, and nobody else, have the file of keys, from a Secret that their group may read."""
    if d.of("Secret"):
        yield "Secret: what is in the manifests is no secret"
    file = d.configuration.app.access.keys_file
    for pod in d.ray_pods():
        volume = None if file is None else pod.mount(file)
        if pod.name != "router":
            if volume is not None:
                yield f"{pod.name}: has no use for the keys"
        elif volume is None or "secret" not in volume:
            yield f"router: {file} does not come from a Secret"
        elif volume["secret"].get("defaultMode") != 0o440 or not pod.spec["securityContext"].get("fsGroup"):
            yield "router: keys need defaultMode 0440 and an fsGroup, or the router refuses them or cannot read them"


def requests_survive_their_router(d: Deployed) -> Iterator[str]:
    """One that has no byte of its answer yet goes to another router, once: what kills one must not kill all."""
    if "empty-response" not in d.environment.get("RAY_SERVE_HAPROXY_RETRY_ON", "").split():
        yield "RAY_SERVE_HAPROXY_RETRY_ON: requests fail that reach a router in the instant of its death"
    if d.environment.get("RAY_SERVE_HAPROXY_RETRIES") != "1":
        yield "RAY_SERVE_HAPROXY_RETRIES: a request that kills routers would be given to all of them"


def streams_end_before_their_pods(d: Deployed) -> Iterator[str]:
    """stream_seconds <= drain_seconds < Ray's drain < Kubernetes' patience; HAProxy and gateways wait as long."""
    longest, drain = d.configuration.live.limits.stream_seconds, d.configuration.app.drain_seconds
    if drain < longest:
        yield f"args.drain_seconds: {drain:g}, and a stream may take {longest:g}"
    node = int(d.environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    if node < drain + REPLACEMENT:
        yield f"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S: {node} leaves Serve no time for a replacement"
    if int(d.environment["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) < longest:
        yield "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S: HAProxy would cut streams after each change of its configuration"
    for pod in d.ray_pods():
        hook = pod.main.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        needed = int(hook[-1]) + node + SLACK
        if pod.spec.get("terminationGracePeriodSeconds", 30) < needed:
            yield f"{pod.name}: terminationGracePeriodSeconds must be {needed} at least"
    if "preStop" not in d.group("router")["template"]["spec"]["containers"][0].get("lifecycle", {}):
        yield "router: no preStop, so balancers still send requests to it while it goes"
    for where, seconds in _timeouts(d):
        if seconds < longest:
            yield f"{where}: {seconds} s, and a stream may take {longest:g}"


def upgrades_wait_for_engines(d: Deployed) -> Iterator[str]:
    if d.service.get("upgradeStrategy", {}).get("type") != "NewCluster":
        yield "upgradeStrategy.type: must be NewCluster"
    if d.service.get("rayClusterDeletionDelaySeconds", 60) < START_LIMIT:
        yield "rayClusterDeletionDelaySeconds: the old cluster may be gone before the new one's engines have started"
    probe = d.group("router")["template"]["spec"]["containers"][0].get("readinessProbe", {}).get("httpGet", {})
    if (probe.get("path"), probe.get("port")) != ("/ready", "serve"):
        yield "router: readinessProbe must ask /ready, or a new cluster gets traffic while its engines start"
    for pod in d.ray_pods():
        if pod.name != "router" and "readinessProbe" in pod.main:
            yield f"{pod.name}: KubeRay's own readiness probe asks for more than one of ours could"


def evictions_leave_a_router(d: Deployed) -> Iterator[str]:
    covered: set[str] = set()
    for budget in d.of("PodDisruptionBudget"):
        name, spec = budget["metadata"]["name"], budget["spec"]
        pods = d.selected(spec["selector"])
        covered |= {pod.name for pod in pods}
        if not pods:
            yield f"PodDisruptionBudget {name}: selects no pod"
        if not isinstance(spec.get("minAvailable"), int) or "maxUnavailable" in spec:
            yield f"PodDisruptionBudget {name}: Kubernetes needs a number for pods of a RayCluster"
        elif [pod.name for pod in pods] == ["router"] and not 1 <= spec["minAvailable"] < d.group("router")[
            "minReplicas"
        ]:
            yield f"PodDisruptionBudget {name}: keeps either no router or every node from being emptied"
    yield from (f"{name}: no PodDisruptionBudget" for name in ("head", "router") if name not in covered)


def every_process_has_the_same_environment(d: Deployed) -> Iterator[str]:
    """Ray's health checks and Serve's modes must agree between nodes."""
    (name,) = (m["metadata"]["name"] for m in d.of("ConfigMap") if m["metadata"]["name"].startswith("ray-environment"))
    for pod in d.ray_pods():
        if {"configMapRef": {"name": name}} not in pod.main.get("envFrom", ()):
            yield f"{pod.name}: does not take its environment from {name}"
    for switch in ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_THROUGHPUT_OPTIMIZED"):
        if d.environment.get(switch) != "1":
            yield f"{switch}: must be 1 here"


def far_nodes_are_borne_with(d: Deployed) -> Iterator[str]:
    """A network that is away for seconds costs no node; one of some hundred milliseconds costs no replica its work."""
    period, times = (int(d.environment[f"RAY_health_check_{name}"]) for name in ("period_ms", "failure_threshold"))
    if period * times < SHORT_CUT * 1000:
        yield f"RAY_health_check_period_ms: {times} of {period} ms are over before a cut of {SHORT_CUT} s heals"
    deadline = float(d.environment.get("RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S", "0.1"))
    if deadline < FAR:
        yield f"RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S: who answers later than {deadline:g} s gets no requests"


def telemetry_goes_to_a_service(d: Deployed) -> Iterator[str]:
    target = urlsplit(d.configuration.app.telemetry.otlp_endpoint or "")
    ports = {s["metadata"]["name"]: [p["port"] for p in s["spec"]["ports"]] for s in d.of("Service")}
    if target.port not in ports.get(target.hostname or "", []):
        yield f"args.telemetry.otlp_endpoint: no Service {target.hostname} with the port {target.port}"


def prometheus_finds_its_targets(d: Deployed) -> Iterator[str]:
    """A Service's /metrics is that of whichever router was asked: only Ray's tell the routers apart."""
    for monitor in d.of("PodMonitor"):
        name, pods = monitor["metadata"]["name"], d.selected(monitor["spec"]["selector"])
        if not d.configuration.app.telemetry.ray_metrics:
            yield "args.telemetry.ray_metrics: must be true, or Prometheus sees nothing of the routers"
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            if all(pod.port(endpoint["port"]) is None for pod in pods):
                yield f"PodMonitor {name}: no pod has the port {endpoint['port']}"
            if endpoint["port"] == "serve":
                yield f"PodMonitor {name}: /metrics behind HAProxy is any router's"
            if endpoint["port"] == "metrics":
                shown = _renamed("ray_disco_wins_total", endpoint.get("metricRelabelings", ()))
                if shown != "disco_wins_total":
                    yield f"PodMonitor {name}: the dashboard asks for disco_wins_total and finds {shown}"


def _renamed(metric: str, relabelings: Iterable[Object]) -> str:
    """As Prometheus does it: the whole name has to match."""
    for each in relabelings:
        matched = re.fullmatch(each["regex"], metric) if each["sourceLabels"] == ["__name__"] else None
        if matched is not None and each["targetLabel"] == "__name__":
            metric = matched.expand(each["replacement"].replace("$", "\\"))
    return metric


def nothing_buffers_streams(d: Deployed) -> Iterator[str]:
    for ingress in d.of("Ingress"):
        notes = ingress["metadata"].get("annotations", {})
        for switch in ("proxy-buffering", "proxy-request-buffering"):
            if notes.get(f"nginx.ingress.kubernetes.io/{switch}") != "off":
                yield f"Ingress: {switch} must be off"


def _ingress_backends(d: Deployed) -> Iterator[tuple[str, str | int]]:
    for ingress in d.of("Ingress"):
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                service = path["backend"]["service"]
                yield service["name"], service["port"].get("name") or service["port"]["number"]


def _route_backends(d: Deployed) -> Iterator[tuple[str, str | int]]:
    for route in d.of("HTTPRoute"):
        for rule in route["spec"]["rules"]:
            for backend in rule["backendRefs"]:
                yield backend["name"], backend["port"]


def _timeouts(d: Deployed) -> Iterator[tuple[str, float]]:
    for ingress in d.of("Ingress"):
        for key, value in ingress["metadata"].get("annotations", {}).items():
            if key.endswith("-timeout"):
                yield f"Ingress {Path(key).name}", float(value)
    for route in d.of("HTTPRoute"):
        for rule in route["spec"]["rules"]:
            for key in ("request", "backendRequest"):
                said = re.fullmatch(r"(\d+)s", rule.get("timeouts", {}).get(key, "0s"))
                yield f"HTTPRoute timeouts.{key}", float(said[1]) if said else 0.0


RULES = (
    one_port_for_http,
    services_lead_somewhere,
    clients_reach_the_routers_only,
    policies_close_every_pod,
    policies_open_what_is_meant,
    ray_asks_for_its_token,
    nobody_is_root,
    resources_are_bounded,
    secrets_are_named_and_not_shipped,
    streams_end_before_their_pods,
    far_nodes_are_borne_with,
    requests_survive_their_router,
    upgrades_wait_for_engines,
    evictions_leave_a_router,
    every_process_has_the_same_environment,
    telemetry_goes_to_a_service,
    prometheus_finds_its_targets,
    nothing_buffers_streams,
)
