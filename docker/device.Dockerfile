# Devices: llama.cpp, compiled for every processor of its architecture and not for the one that builds it.
#   docker buildx build --platform linux/amd64,linux/arm64 -f docker/device.Dockerfile -t disco-device:0.1.0 .
FROM python:3.11.14-slim-trixie AS build
# GCC 14 knows the newest of the ARM variants (SME).
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/disco
COPY . /src
# One module of the CPU backend per instruction set, beside the library; the engine loads the best that the node can run.
ENV CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON -DCMAKE_INSTALL_BINDIR=llama_cpp/lib -DLLAVA_BUILD=OFF"
RUN /opt/disco/bin/pip install --no-cache-dir -c /src/docker/constraints.txt "/src[llama]"

FROM python:3.11.14-slim-trixie
# wget: KubeRay's readiness probes. libgomp1: llama.cpp's threads.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 wget && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home disco
COPY --from=build /opt/disco /opt/disco
ENV PATH=/opt/disco/bin:$PATH PYTHONUNBUFFERED=1
# Fails here rather than on a device where no module of the CPU backend is found.
RUN python -c "from pathlib import Path; from llama_cpp import _ggml; from actors.engines.llama_cpp import load_backends; \
    load_backends(_ggml.libggml, Path(_ggml.libggml_base_path)); assert _ggml.libggml.ggml_backend_reg_count()"
USER 10001
WORKDIR /home/disco
