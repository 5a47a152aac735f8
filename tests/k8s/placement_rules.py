"""Rules about the Ray cluster and the Serve configuration inside it. Each returns what breaks it, in words."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping

from serve_app.app import EXCHANGE_CPUS, ROUTER_HEADROOM
from serve_app.engine_settings import LlamaCppEngineSettings, OpenAIHttpEngineSettings, VllmEngineSettings
from tests.k8s.manifests import ROOT, Deployed, Object, quantity

#: RAY_SERVE_HAPROXY_MAXCONN, unless the environment says otherwise.
HAPROXY_CONNECTIONS = 4096


def the_configuration_is_sound(d: Deployed) -> Iterator[str]:
    """As `disco check` judges it. The other rules rely on it."""
    try:
        _ = d.configuration
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not sound
        yield f"serveConfigV2: {error}"


def every_selector_has_its_group(d: Deployed) -> Iterator[str]:
    for name, selector in _selectors(d).items():
        if not selector:
            yield f"{name}: would run anywhere, the routers' nodes included; give it a label_selector"
        elif not any(_matches(group, selector) for group in d.cluster["workerGroupSpecs"]):
            yield f"{name}: no worker group has the labels {selector}, so it waits for ever"


def groups_are_apart(d: Deployed) -> Iterator[str]:
    for group in d.cluster["workerGroupSpecs"]:
        tenants = sorted(name for name, selector in _selectors(d).items() if selector and _matches(group, selector))
        if not tenants:
            yield f"{group['groupName']}: nothing of the configuration runs there"
        if len({name for name in tenants if name != "exchange"}) > 1:
            yield f"{group['groupName']}: {' and '.join(tenants)} share it, and its sizes are made for one"


def groups_are_large_enough(d: Deployed) -> Iterator[str]:
    """A replica fits into a pod, the smallest group holds what runs always, the largest all that may run."""
    app = d.configuration.app
    needs = {
        f"endpoint-{name}": (e.placement.num_cpus, e.placement.num_gpus, e.placement.replicas, e.placement.max_replicas)
        for name, e in app.endpoints.items()
    }
    needs["DiscoRouter"] = (app.router.num_cpus, 0.0, app.router.replicas, None)
    for name, (cpus, gpus, least, most) in needs.items():
        for group in _groups(d, name):
            cores, devices = ray_cpus(group), ray_gpus(group)
            spare = EXCHANGE_CPUS if name == "DiscoRouter" else 0.0
            each = int(min((cores - spare) // cpus if cpus else 1024, devices // gpus if gpus else 1024))
            if name == "DiscoRouter":
                each = min(each, app.router.max_per_node or each)
            if each < 1:
                yield f"{name}: needs {cpus:g} cores and {gpus:g} GPUs; a pod of {group['groupName']} has less"
            elif group["minReplicas"] * each < least:
                yield f"{name}: {least} replicas do not fit into the {group['minReplicas']} pods that always run"
            elif most is not None and group["maxReplicas"] * each < most:
                yield f"{name}: {most} replicas do not fit into {group['maxReplicas']} pods"


def the_cluster_scales(d: Deployed) -> Iterator[str]:
    if d.cluster.get("enableInTreeAutoscaling") is not True:
        yield "enableInTreeAutoscaling: replicas beyond the first would wait for nodes that nobody adds"
    for name, endpoint in d.configuration.app.endpoints.items():
        if endpoint.placement.max_replicas in (None, endpoint.placement.replicas):
            yield f"endpoint-{name}: does not scale"
    for group in d.cluster["workerGroupSpecs"]:
        if not group["minReplicas"] == group["replicas"] < group["maxReplicas"]:
            yield f"{group['groupName']}: replicas must start at minReplicas and have room up to maxReplicas"


def arm64_means_arm64(d: Deployed) -> Iterator[str]:
    """Ray's label says so, Kubernetes' selector sees to it, and such nodes' usual taint is tolerated."""
    for group in d.cluster["workerGroupSpecs"]:
        spec = group["template"]["spec"]
        labelled = group.get("labels", {}).get("cpu-arch")
        selected = spec.get("nodeSelector", {}).get("kubernetes.io/arch")
        if labelled != selected:
            yield f"{group['groupName']}: Ray's label cpu-arch is {labelled}, the nodeSelector {selected}"
        tolerated = {(t["key"], t.get("value")) for t in spec.get("tolerations", ())}
        if selected is not None and ("kubernetes.io/arch", selected) not in tolerated:
            yield f"{group['groupName']}: does not tolerate the taint of {selected} nodes"


def gpus_are_asked_for(d: Deployed) -> Iterator[str]:
    for group in d.cluster["workerGroupSpecs"]:
        resources = group["template"]["spec"]["containers"][0]["resources"]
        limit, request = (resources[kind].get("nvidia.com/gpu") for kind in ("limits", "requests"))
        tolerates = any(t["key"] == "nvidia.com/gpu" for t in group["template"]["spec"].get("tolerations", ()))
        selects = "nvidia.com/gpu.present" in group["template"]["spec"].get("nodeSelector", {})
        if limit != request:
            yield f"{group['groupName']}: asks for {request} GPUs and may have {limit}"
        if (limit is not None) != tolerates or (limit is not None) != selects:
            yield f"{group['groupName']}: GPUs, their taint's toleration and their nodes' selector come together"


def the_head_serves_nobody(d: Deployed) -> Iterator[str]:
    if d.head["rayStartParams"].get("num-cpus") != "0":
        yield "headGroupSpec.rayStartParams.num-cpus: must be 0, or replicas run on the head"
    if d.service.get("excludeHeadPodFromServeSvc") is not True:
        yield "excludeHeadPodFromServeSvc: clients would come in through the head"


def routers_are_on_different_nodes(d: Deployed) -> Iterator[str]:
    router = d.configuration.app.router
    if router.replicas < 2 or router.max_per_node != 1:
        yield "args.router: two replicas at least, and max_per_node: 1"
    spreads = d.group("router")["template"]["spec"].get("topologySpreadConstraints", ())
    if not any(
        s["topologyKey"] == "kubernetes.io/hostname"
        and s["whenUnsatisfiable"] == "DoNotSchedule"
        and s.get("minDomains", 1) >= router.replicas
        and s["maxSkew"] == 1
        and any(pod.name == "router" for pod in d.selected(s["labelSelector"]))
        for s in spreads
    ):
        yield "router: its pods may share a machine"


def streams_fit_into_the_proxy(d: Deployed) -> Iterator[str]:
    """HAProxy on one node may carry the streams of all routers."""
    router = d.configuration.app.router
    most = d.group("router")["maxReplicas"] * (router.max_streams + ROUTER_HEADROOM)
    connections = int(d.environment.get("RAY_SERVE_HAPROXY_MAXCONN", HAPROXY_CONNECTIONS))
    if most > connections:
        yield f"router.max_streams: {most} streams over all routers, and HAProxy takes {connections} connections"


def models_are_fetched(d: Deployed) -> Iterator[str]:
    for name, endpoint in d.configuration.app.endpoints.items():
        if not isinstance(endpoint.engine, LlamaCppEngineSettings | VllmEngineSettings):
            continue
        for group in _groups(d, f"endpoint-{name}"):
            spec = group["template"]["spec"]
            words = " ".join(word for c in spec.get("initContainers", ()) for word in c["command"])
            if f"fetch {endpoint.engine.model}" not in words:
                yield f"{group['groupName']}: nothing fetches {endpoint.engine.model}"
            if isinstance(endpoint.engine, VllmEngineSettings) and f"convert {endpoint.engine.model}" not in words:
                yield f"{group['groupName']}: nothing makes vLLM's folder of {endpoint.engine.model}"


def threads_are_the_pods_cores(d: Deployed) -> Iterator[str]:
    for name, endpoint in d.configuration.app.endpoints.items():
        if (
            isinstance(endpoint.engine, LlamaCppEngineSettings)
            and endpoint.engine.threads != endpoint.placement.num_cpus
        ):
            yield f"endpoint-{name}: engine.threads and placement.num_cpus differ"


def keys_of_services_are_where_they_are_used(d: Deployed) -> Iterator[str]:
    for name, endpoint in d.configuration.app.endpoints.items():
        if isinstance(endpoint.engine, OpenAIHttpEngineSettings):
            wanted = endpoint.engine.api_key_env
            for group in _groups(d, f"endpoint-{name}"):
                env = group["template"]["spec"]["containers"][0].get("env", ())
                if not any(e["name"] == wanted and "secretKeyRef" in e.get("valueFrom", {}) for e in env):
                    yield f"{group['groupName']}: {wanted} does not come from a Secret there"


def one_version_everywhere(d: Deployed) -> Iterator[str]:
    """This project's in the images' tags, and Ray's in the cluster and in what the images install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pins = dict(
        line.split("==") for line in (ROOT / "docker/constraints.txt").read_text("utf-8").splitlines() if "==" in line
    )
    if d.cluster["rayVersion"] != pins["ray"]:
        yield f"rayVersion: {d.cluster['rayVersion']}, and the images have {pins['ray']}"
    for where, image in d.images():
        name, _, tag = image.rpartition("/")[2].partition(":")
        if name.startswith("disco-") and tag != project["version"]:
            yield f"{where}: {image} is not this version, {project['version']}"
        if not tag or tag == "latest":
            yield f"{where}: {image} is not pinned"


def ray_cpus(group: Object) -> float:
    """As KubeRay tells `ray start`."""
    said = group.get("rayStartParams", {}).get("num-cpus")
    return float(said if said is not None else _limit(group, "cpu"))


def ray_gpus(group: Object) -> float:
    return _limit(group, "nvidia.com/gpu")


def _limit(group: Object, resource: str) -> float:
    return quantity(group["template"]["spec"]["containers"][0]["resources"]["limits"].get(resource, 0))


def _selectors(d: Deployed) -> Mapping[str, Mapping[str, str]]:
    """Of every deployment."""
    app = d.configuration.app
    found = {f"endpoint-{name}": endpoint.placement.label_selector for name, endpoint in app.endpoints.items()}
    return {**found, "DiscoRouter": app.router.label_selector, "exchange": app.router.label_selector}


def _groups(d: Deployed, deployment: str) -> list[Object]:
    selector = _selectors(d)[deployment]
    return [group for group in d.cluster["workerGroupSpecs"] if _matches(group, selector)]


def _matches(group: Object, selector: Mapping[str, str]) -> bool:
    labels = group.get("labels", {})
    return all(labels.get(key) == value for key, value in selector.items())


RULES = (
    the_configuration_is_sound,
    every_selector_has_its_group,
    groups_are_apart,
    groups_are_large_enough,
    the_cluster_scales,
    arm64_means_arm64,
    gpus_are_asked_for,
    the_head_serves_nobody,
    routers_are_on_different_nodes,
    streams_fit_into_the_proxy,
    models_are_fetched,
    threads_are_the_pods_cores,
    keys_of_services_are_where_they_are_used,
    one_version_everywhere,
)
