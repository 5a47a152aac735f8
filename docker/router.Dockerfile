# Head and routers: no engine. Any architecture:
#   docker buildx build --platform linux/amd64,linux/arm64 -f docker/router.Dockerfile -t disco-router:0.1.0 .
FROM python:3.11.14-slim-trixie AS build
RUN python -m venv /opt/disco
COPY . /src
RUN /opt/disco/bin/pip install --no-cache-dir -c /src/docker/constraints.txt /src

FROM python:3.11.14-slim-trixie
# wget: KubeRay's readiness probes.
RUN apt-get update && apt-get install -y --no-install-recommends wget && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home disco
COPY --from=build /opt/disco /opt/disco
ENV PATH=/opt/disco/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/disco
