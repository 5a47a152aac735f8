"""Runs on a cluster's head: hands the configuration on stdin to Serve there, as ``serve deploy`` would.

    python -m benchmarks.hosts.deploy ADDRESS < configuration.yaml

``serve deploy`` itself needs Ray's dashboard, which these small hosts do without.
"""

from __future__ import annotations

import logging
import sys

import ray
import yaml
from ray.serve._private.api import serve_start
from ray.serve.schema import ServeDeploySchema


def main(address: str) -> int:
    schema = ServeDeploySchema.model_validate(yaml.safe_load(sys.stdin))
    ray.init(address=address, namespace="serve", log_to_driver=False, logging_level=logging.ERROR)
    client = serve_start(
        http_options=schema.http_options.model_dump(),
        proxy_location=schema.proxy_location,
        global_logging_config=schema.logging_config,
    )
    client.deploy_apps(schema, _blocking=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
