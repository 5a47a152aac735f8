"""The application: the only place that binds deployments and Ray's options.

No postponed annotations here: Serve validates ``args`` only if the builder's annotation is a class.
"""

from typing import Any

from ray import serve
from ray.serve import Application

from actors.exchange import ExchangeReplica
from actors.placement import deployment_options
from actors.replica import EndpointReplica
from actors.threads import available_cores, threads_per_engine
from serve_app.router import DiscoRouter
from serve_app.settings import AppSettings

#: Streams that wait at a router replica beyond ``router.max_streams`` are refused by the router itself, with a 429;
#: Serve's own limit only has to stay above that.
ROUTER_HEADROOM = 64

#: The exchange answers each router once a second.
EXCHANGE_CPUS = 0.1


def build_app(args: AppSettings) -> Application:
    """One deployment per endpoint, the router that is handed all of their handles, and a meeting place for several."""
    threads = threads_per_engine(args.endpoints.values(), available_cores())
    handles = {}
    for name, endpoint in args.endpoints.items():
        deployment = serve.deployment(name=f"endpoint-{name}", **deployment_options(endpoint, args.drain_seconds))(
            EndpointReplica
        )
        handles[name] = deployment.bind(name, endpoint, args.telemetry, threads)
    where = {"label_selector": dict(args.router.label_selector)} if args.router.label_selector else {}
    spread: dict[str, Any] = (
        {} if args.router.max_per_node is None else {"max_replicas_per_node": args.router.max_per_node}
    )
    router = serve.deployment(
        name="DiscoRouter",
        num_replicas=args.router.replicas,
        ray_actor_options={"num_cpus": args.router.num_cpus, **where},
        max_ongoing_requests=args.router.max_streams + ROUTER_HEADROOM,
        graceful_shutdown_timeout_s=args.drain_seconds,
        graceful_shutdown_wait_loop_s=0.2,
        user_config={},
        **spread,
    )(serve.ingress()(DiscoRouter))
    if args.router.replicas == 1 and not args.devices.allow:
        return router.bind(args, handles)
    exchange = serve.deployment(
        name="exchange",
        ray_actor_options={"num_cpus": EXCHANGE_CPUS, **where},
        max_ongoing_requests=args.router.replicas + ROUTER_HEADROOM,
    )(ExchangeReplica)
    return router.bind(args, handles, exchange.bind())
