# holdfast on AMD. The image brings a torch built for ROCm, and nothing here replaces it.
#   docker build -f docker/rocm.Dockerfile -t holdfast:rocm .
#   docker run --rm -it --user "$(id -u):$(id -g)" --device /dev/kfd --device /dev/dri --group-add video --group-add render --shm-size 8g -v "$PWD:/work" holdfast:rocm train my-run.yaml
# Nothing runs as root in it; --user makes what it writes yours. A tag may come to mean another image: to stay with one, build with
#   --build-arg BASE=NAME@sha256:...      the digest that `docker buildx imagetools inspect NAME:TAG` prints
ARG BASE=rocm/pytorch:latest
FROM ${BASE}
WORKDIR /opt/holdfast
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -c "import torch; print(torch.__version__)" > /tmp/torch-before \
 && python -m pip install --no-cache-dir '.[redis,watch]' "transformers>=4.57" "peft>=0.17" \
 && python -c "import torch; assert torch.version.hip, 'torch lost its ROCm build'; print(torch.__version__)" | diff - /tmp/torch-before
RUN useradd --create-home --uid 10001 holdfast && install -d -m 1777 /cache /work /home/holdfast
ENV HOME=/home/holdfast HOLDFAST_CACHE=/cache
USER holdfast
WORKDIR /work
ENTRYPOINT ["holdfast"]
