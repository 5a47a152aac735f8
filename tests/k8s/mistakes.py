"""Mistakes: a change to sound manifests, the rule that is there for it, and a word of what that says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.k8s import guard_rules as guards
from tests.k8s import placement_rules as places
from tests.k8s import schemas
from tests.k8s.manifests import Deployed

Rule = Callable[[Deployed], Iterable[str]]
Change = Callable[[Deployed], object]
Mistake = tuple[Change, Rule, str]


def spec(d: Deployed, group: str) -> dict[str, Any]:
    found: dict[str, Any] = d.group(group)["template"]["spec"]
    return found


def main(d: Deployed, group: str) -> dict[str, Any]:
    container: dict[str, Any] = spec(d, group)["containers"][0]
    return container


def args(change: Callable[[dict[str, Any]], object]) -> Change:
    return lambda d: d.serve_config(lambda document: change(document["applications"][0]["args"]))


def live(change: Callable[[dict[str, Any]], object]) -> Change:
    return lambda d: d.serve_config(
        lambda document: change(document["applications"][0]["deployments"][0]["user_config"])
    )


def rename_port(d: Deployed, group: str, old: str, new: int) -> None:
    next(port for port in main(d, group)["ports"] if port["name"] == old)["containerPort"] = new


def policy(d: Deployed, name: str) -> dict[str, Any]:
    found: dict[str, Any] = d.named("NetworkPolicy", name)["spec"]
    return found


def environment(d: Deployed) -> dict[str, str]:
    return dict_of(next(m for m in d.of("ConfigMap") if m["metadata"]["name"].startswith("ray-environment")), "data")


def dict_of(parent: dict[str, Any], key: str) -> dict[str, Any]:
    child: dict[str, Any] = parent[key]
    return child


#: In the overlay gpu-cloud with every component.
MISTAKES: Mapping[str, Mistake] = {
    # --- the Serve configuration and its place
    "an unknown setting": (args(lambda a: a.update(rooter={})), places.the_configuration_is_sound, "rooter"),
    "a label that no node has": (
        lambda d: d.group("device").update(labels={"tier": "device", "cpu-arch": "arm"}),
        places.every_selector_has_its_group,
        "endpoint-device",
    ),
    "a selector that is gone": (
        args(lambda a: a["endpoints"]["cloud"]["placement"].pop("label_selector")),
        places.every_selector_has_its_group,
        "would run anywhere",
    ),
    "a selector with another word": (
        args(lambda a: a["router"]["label_selector"].update(tier="edge")),
        places.every_selector_has_its_group,
        "exchange",
    ),
    "a group that nothing uses": (
        lambda d: d.cluster["workerGroupSpecs"].append({**d.group("cloud"), "groupName": "spare", "labels": {}}),
        places.groups_are_apart,
        "spare",
    ),
    "two tenants of a group": (
        args(lambda a: a["endpoints"]["device"]["placement"].update(label_selector={"tier": "cloud"})),
        places.groups_are_apart,
        "share it",
    ),
    "pods too small for a replica": (
        lambda d: main(d, "device")["resources"]["limits"].update(cpu="3"),
        places.groups_are_large_enough,
        "a pod of device has less",
    ),
    "more GPUs than a pod has": (
        args(lambda a: a["endpoints"]["cloud"]["placement"].update(num_gpus=2)),
        places.groups_are_large_enough,
        "2 GPUs",
    ),
    "fewer pods than replicas": (
        lambda d: d.group("router").update(minReplicas=1, replicas=1),
        places.groups_are_large_enough,
        "DiscoRouter",
    ),
    "no room to scale": (
        lambda d: d.group("cloud").update(maxReplicas=2),
        places.groups_are_large_enough,
        "do not fit into 2 pods",
    ),
    "an autoscaler that is off": (
        lambda d: d.cluster.update(enableInTreeAutoscaling=False),
        places.the_cluster_scales,
        "enableInTreeAutoscaling",
    ),
    "a cloud that does not scale": (
        args(lambda a: a["endpoints"]["cloud"]["placement"].pop("max_replicas")),
        places.the_cluster_scales,
        "endpoint-cloud",
    ),
    "devices on any architecture": (
        lambda d: spec(d, "device").pop("nodeSelector"),
        places.arm64_means_arm64,
        "nodeSelector None",
    ),
    "a taint that is not tolerated": (
        lambda d: spec(d, "device").pop("tolerations"),
        places.arm64_means_arm64,
        "taint",
    ),
    "a GPU that is not requested": (
        lambda d: main(d, "cloud")["resources"]["requests"].pop("nvidia.com/gpu"),
        places.gpus_are_asked_for,
        "None GPUs",
    ),
    "a GPU node's taint": (lambda d: spec(d, "cloud").pop("tolerations"), places.gpus_are_asked_for, "come together"),
    "a head with room for replicas": (
        lambda d: d.head["rayStartParams"].pop("num-cpus"),
        places.the_head_serves_nobody,
        "num-cpus",
    ),
    "routers on one machine": (
        lambda d: spec(d, "router").pop("topologySpreadConstraints"),
        places.routers_are_on_different_nodes,
        "share a machine",
    ),
    "routers on one Ray node": (
        args(lambda a: a["router"].pop("max_per_node")),
        places.routers_are_on_different_nodes,
        "max_per_node",
    ),
    "more streams than connections": (
        args(lambda a: a["router"].update(max_streams=2000)),
        places.streams_fit_into_the_proxy,
        "4096",
    ),
    "a model that nobody fetches": (
        args(lambda a: a["endpoints"]["device"]["engine"].update(model="gemma3-270m")),
        places.models_are_fetched,
        "gemma3-270m",
    ),
    "more threads than cores": (
        args(lambda a: a["endpoints"]["device"]["engine"].update(threads=8)),
        places.threads_are_the_pods_cores,
        "differ",
    ),
    "another Ray": (lambda d: d.cluster.update(rayVersion="2.59.0"), places.one_version_everywhere, "2.59.0"),
    "another version of an image": (
        lambda d: main(d, "device").update(image="registry.example/disco-device:0.0.9"),
        places.one_version_everywhere,
        "not this version",
    ),
    "an image without a version": (
        lambda d: spec(d, "cloud")["initContainers"][0].update(image="registry.example/tools:latest"),
        places.one_version_everywhere,
        "not pinned",
    ),
    # --- ports, networks
    "another port": (
        lambda d: d.serve_config(lambda document: document["http_options"].update(port=8001)),
        guards.one_port_for_http,
        "8001",
    ),
    "a container's port": (lambda d: rename_port(d, "router", "serve", 8080), guards.one_port_for_http, "router"),
    "HAProxy's metrics elsewhere": (
        lambda d: environment(d).update(RAY_SERVE_HAPROXY_METRICS_PORT="9200"),
        guards.one_port_for_http,
        "9200",
    ),
    "a Service's port that no pod has": (
        lambda d: d.named("Service", "disco")["spec"]["ports"][0].update(targetPort="web"),
        guards.services_lead_somewhere,
        "no port web",
    ),
    "a Service that selects nobody": (
        lambda d: d.named("Service", "jaeger")["spec"].update(selector={"app": "jaeger"}),
        guards.services_lead_somewhere,
        "selects no pod",
    ),
    "clients at every node": (
        lambda d: d.named("Service", "disco")["spec"]["selector"].pop("ray.io/group"),
        guards.clients_reach_the_routers_only,
        "device",
    ),
    "an Ingress to another port": (
        lambda d: d.of("Ingress")[0]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"].update(
            port={"number": 8000}
        ),
        guards.clients_reach_the_routers_only,
        "8000",
    ),
    "a pod that no policy selects": (
        lambda d: d.named("Deployment", "jaeger")["spec"]["template"]["metadata"]["labels"].pop(
            "app.kubernetes.io/part-of"
        ),
        guards.policies_close_every_pod,
        "jaeger",
    ),
    "the API for everybody": (
        lambda d: policy(d, "disco-clients")["ingress"][0].pop("from"),
        guards.policies_open_what_is_meant,
        "lets everybody in",
    ),
    "every port for Prometheus": (
        lambda d: policy(d, "disco-monitoring")["ingress"][0].pop("ports"),
        guards.policies_open_what_is_meant,
        "every port",
    ),
    "HAProxy's statistics for clients": (
        lambda d: policy(d, "disco-clients")["ingress"][0]["ports"].append({"protocol": "TCP", "port": "haproxy"}),
        guards.policies_open_what_is_meant,
        "opens [8000, 9101]",
    ),
    # --- users, secrets
    "Ray without a token": (lambda d: d.cluster.pop("authOptions"), guards.ray_asks_for_its_token, "authOptions"),
    "a token of one's own": (
        lambda d: main(d, "router").update(env=[{"name": "RAY_AUTH_TOKEN", "value": "x"}]),
        guards.ray_asks_for_its_token,
        "KubeRay's to set",
    ),
    "root": (
        lambda d: spec(d, "device")["securityContext"].pop("runAsNonRoot"),
        guards.nobody_is_root,
        "device",
    ),
    "capabilities": (lambda d: main(d, "cloud").pop("securityContext"), guards.nobody_is_root, "cloud/ray-worker"),
    "memory without a limit": (
        lambda d: main(d, "router")["resources"]["limits"].pop("memory"),
        guards.resources_are_bounded,
        "limits of memory",
    ),
    "a secret in the manifests": (
        lambda d: d.objects.append({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "disco-keys"}}),
        guards.secrets_are_named_and_not_shipped,
        "no secret",
    ),
    "keys elsewhere": (
        args(lambda a: a["access"].update(keys_file="/etc/keys.yaml")),
        guards.secrets_are_named_and_not_shipped,
        "does not come from a Secret",
    ),
    "keys that strangers may read": (
        lambda d: spec(d, "router")["volumes"][0]["secret"].update(defaultMode=0o444),
        guards.secrets_are_named_and_not_shipped,
        "0440",
    ),
    # --- drains, upgrades, evictions
    "replicas that stop too soon": (
        args(lambda a: a.pop("drain_seconds")),
        guards.streams_end_before_their_pods,
        "args.drain_seconds: 5",
    ),
    "streams that last longer": (
        live(lambda u: u["limits"].update(stream_seconds=900)),
        guards.streams_end_before_their_pods,
        "a stream may take 900",
    ),
    "nodes that die of a hiccup": (
        lambda d: environment(d).update(RAY_health_check_period_ms="500"),
        guards.far_nodes_are_borne_with,
        "before a cut of 10 s heals",
    ),
    "Serve's default for near replicas": (
        lambda d: environment(d).pop("RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S"),
        guards.far_nodes_are_borne_with,
        "later than 0.1 s gets no requests",
    ),
    "HAProxy's care for requests that were sent": (
        lambda d: environment(d).pop("RAY_SERVE_HAPROXY_RETRY_ON"),
        guards.requests_survive_their_router,
        "in the instant of its death",
    ),
    "HAProxy's three attempts": (
        lambda d: environment(d).pop("RAY_SERVE_HAPROXY_RETRIES"),
        guards.requests_survive_their_router,
        "given to all of them",
    ),
    "HAProxy's default": (
        lambda d: environment(d).update(RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S="120"),
        guards.streams_end_before_their_pods,
        "HAProxy would cut",
    ),
    "Ray's default": (
        lambda d: environment(d).update(RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S="30"),
        guards.streams_end_before_their_pods,
        "no time for a replacement",
    ),
    "Kubernetes' default": (
        lambda d: spec(d, "device").pop("terminationGracePeriodSeconds"),
        guards.streams_end_before_their_pods,
        "device: terminationGracePeriodSeconds",
    ),
    "no time for balancers": (
        lambda d: main(d, "router").pop("lifecycle"),
        guards.streams_end_before_their_pods,
        "preStop",
    ),
    "an impatient Ingress": (
        lambda d: d.of("Ingress")[0]["metadata"]["annotations"].update(
            {"nginx.ingress.kubernetes.io/proxy-read-timeout": "60"}
        ),
        guards.streams_end_before_their_pods,
        "proxy-read-timeout: 60",
    ),
    "an impatient Gateway": (
        lambda d: d.of("HTTPRoute")[0]["spec"]["rules"][0]["timeouts"].update(request="10s"),
        guards.streams_end_before_their_pods,
        "timeouts.request: 10",
    ),
    "an old cluster that goes at once": (
        lambda d: d.service.pop("rayClusterDeletionDelaySeconds"),
        guards.upgrades_wait_for_engines,
        "engines have started",
    ),
    "readiness without engines": (
        lambda d: main(d, "router")["readinessProbe"]["httpGet"].update(path="/health"),
        guards.upgrades_wait_for_engines,
        "/ready",
    ),
    "no router left": (
        lambda d: d.named("PodDisruptionBudget", "disco-routers")["spec"].update(minAvailable=0),
        guards.evictions_leave_a_router,
        "no router",
    ),
    "a share of pods": (
        lambda d: d.named("PodDisruptionBudget", "disco-routers")["spec"].update(minAvailable="50%"),
        guards.evictions_leave_a_router,
        "needs a number",
    ),
    "a head without a budget": (
        lambda d: d.objects.remove(d.named("PodDisruptionBudget", "disco-head")),
        guards.evictions_leave_a_router,
        "head: no PodDisruptionBudget",
    ),
    # --- environment, telemetry, balancers
    "a node with other health checks": (
        lambda d: main(d, "device").pop("envFrom"),
        guards.every_process_has_the_same_environment,
        "device",
    ),
    "spans to nobody": (
        args(lambda a: a["telemetry"].update(otlp_endpoint="http://collector:4318")),
        guards.telemetry_goes_to_a_service,
        "no Service collector",
    ),
    "spans to another port": (
        lambda d: d.named("Service", "otel-collector")["spec"]["ports"][1].update(port=4319),
        guards.telemetry_goes_to_a_service,
        "4318",
    ),
    "a scrape of no port": (
        lambda d: d.named("PodMonitor", "disco")["spec"]["podMetricsEndpoints"][0].update(port="prom"),
        guards.prometheus_finds_its_targets,
        "no pod has the port prom",
    ),
    "a scrape of any router": (
        lambda d: d.named("PodMonitor", "disco")["spec"]["podMetricsEndpoints"].append({"port": "serve"}),
        guards.prometheus_finds_its_targets,
        "any router's",
    ),
    "routers that Prometheus does not see": (
        args(lambda a: a["telemetry"].pop("ray_metrics")),
        guards.prometheus_finds_its_targets,
        "ray_metrics",
    ),
    "names that the dashboard does not know": (
        lambda d: d.named("PodMonitor", "disco")["spec"]["podMetricsEndpoints"][0].pop("metricRelabelings"),
        guards.prometheus_finds_its_targets,
        "finds ray_disco_wins_total",
    ),
    "a balancer that buffers": (
        lambda d: d.of("Ingress")[0]["metadata"]["annotations"].pop("nginx.ingress.kubernetes.io/proxy-buffering"),
        guards.nothing_buffers_streams,
        "proxy-buffering must be off",
    ),
    # --- schemas
    "a field that Kubernetes does not know": (
        lambda d: d.named("Service", "disco")["spec"].update(selectors={}),
        schemas.kubernetes_knows_every_field,
        "selectors",
    ),
    "a value of the wrong kind": (
        lambda d: d.named("Deployment", "jaeger")["spec"].update(replicas="one"),
        schemas.kubernetes_knows_every_field,
        "replicas",
    ),
}

BY_KUBERAY: Mapping[str, tuple[Change, str]] = {
    "a field that KubeRay does not know": (lambda d: d.service.update(rayClusterConfigs={}), "rayClusterConfigs"),
    "a mode that KubeRay does not know": (lambda d: d.cluster["authOptions"].update(mode="tokens"), "tokens"),
    "a group without a name": (lambda d: d.group("cloud").pop("groupName"), "groupName"),
    "a field of a pod that is not there": (lambda d: spec(d, "router").update(gracePeriod=3), "gracePeriod"),
}
