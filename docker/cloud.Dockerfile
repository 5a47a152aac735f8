# The cloud: vLLM on GPUs. CUDA's libraries come with its packages, the driver from the node.
#   docker buildx build --platform linux/amd64,linux/arm64 -f docker/cloud.Dockerfile -t disco-cloud:0.1.0 .
FROM python:3.11.14-slim-trixie AS build
RUN python -m venv /opt/disco
COPY . /src
RUN /opt/disco/bin/pip install --no-cache-dir -c /src/docker/constraints.txt "/src[vllm,convert]"

FROM python:3.11.14-slim-trixie
# wget: KubeRay's readiness probes. gcc: Triton, which vLLM runs on, compiles its link to the GPU's driver at the first start
# on a node and does not start without a C compiler. The other images have none.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev wget && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home disco
COPY --from=build /opt/disco /opt/disco
ENV PATH=/opt/disco/bin:$PATH PYTHONUNBUFFERED=1 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001
WORKDIR /home/disco
