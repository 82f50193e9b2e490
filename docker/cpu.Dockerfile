# holdfast without a GPU.
#   docker build -f docker/cpu.Dockerfile -t holdfast:cpu --build-arg TORCH_INDEX=<index of the CPU wheels of torch> .
#   docker run --rm -it --shm-size 1g -v "$PWD:/work" holdfast:cpu train my-run.yaml
# Without TORCH_INDEX pip takes its usual build, which works too but carries gigabytes of CUDA.
ARG BASE=python:3.11-slim
FROM ${BASE}
ARG TORCH_INDEX=""
RUN python -m pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch>=2.4"
WORKDIR /opt/holdfast
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m pip install --no-cache-dir . "transformers>=4.57" "peft>=0.17"
WORKDIR /work
ENTRYPOINT ["holdfast"]
