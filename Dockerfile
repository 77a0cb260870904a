# Worker images, built by `make image` (harness/provision/image/build says how it reaches an index).
# Targets: cpu (default), gpu, tpu, head (cpu and what the driver writes results with), and launcher (head and
# what starts the other machines of a cluster with).
# No RUN --mount: Debian's docker.io builds with the engine's own builder, which has none.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS builder
# Certificates of a network that intercepts TLS, proxies and indexes are for this stage only.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY harness/provision/image/environment build/ca-certificates.cr[t] /opt/build/
RUN /opt/build/environment create

FROM builder AS environment-cpu
COPY .ci/lock/worker-cpu.txt /opt/build/lock.txt
RUN /opt/build/environment install /opt/build/lock.txt

FROM environment-cpu AS project
COPY pyproject.toml README.md LICENSE /opt/project/
COPY harness /opt/project/harness
COPY reports /opt/project/reports
COPY strategies /opt/project/strategies
COPY workloads /opt/project/workloads
RUN /opt/build/environment project /opt/project /opt/root

FROM ${BASE_IMAGE} AS runtime
# Nothing is written under a read-only root, so the standard library is compiled here or at every start.
RUN python3 -m compileall -q -j 0 "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
 && useradd --uid 10001 --user-group --no-log-init --home-dir /tmp --shell /usr/sbin/nologin stratbench \
 # Shells of a login, in which Ray's launcher runs its commands, forget the PATH below.
 && ln -s /opt/stratbench/bin/ray /opt/stratbench/bin/stratbench /usr/local/bin/
ENV PATH=/opt/stratbench/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    RAY_USAGE_STATS_ENABLED=0
WORKDIR /tmp
USER 10001:10001
# Without a process of its own, so that it takes nothing from a step that is being timed.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
  CMD grep -qsx raylet /proc/[0-9]*/comm
CMD ["stratbench", "--help"]

FROM runtime AS cpu
COPY --from=environment-cpu /opt/stratbench /opt/stratbench
COPY --from=project /opt/root /

FROM environment-cpu AS driver
COPY .ci/lock/head.txt /opt/build/lock.txt
RUN /opt/build/environment install /opt/build/lock.txt /opt/root

# What drives runs from inside a cluster: steps are written as Parquet there.
FROM cpu AS head
COPY --from=driver /opt/root /

FROM environment-cpu AS clouds
COPY .ci/lock/launcher.txt /opt/build/lock.txt
RUN /opt/build/environment install /opt/build/lock.txt /opt/root

# The head of a cluster that Ray's launcher brings up: from there Ray asks the cloud for machines, and logs in to them.
FROM head AS launcher
USER root
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends --yes openssh-client rsync >/dev/null \
 && rm -rf /var/lib/apt/lists/*
USER 10001:10001
COPY --from=clouds /opt/root /

FROM builder AS environment-gpu
COPY .ci/lock/worker-gpu.txt /opt/build/lock.txt
RUN /opt/build/environment install /opt/build/lock.txt

FROM runtime AS gpu
COPY --from=environment-gpu /opt/stratbench /opt/stratbench
COPY --from=project /opt/root /
# TensorFlow's own search path lacks the folder of libcusolver.
USER root
RUN ls -d /opt/stratbench/lib/python3*/site-packages/nvidia/*/lib > /etc/ld.so.conf.d/stratbench-cuda.conf \
 && ldconfig
USER 10001:10001

# TensorFlow 2.20: the newest for TPUs that the package index has, one minor version behind the others.
FROM builder AS environment-tpu
COPY .ci/lock/worker-tpu.txt /opt/build/lock.txt
RUN /opt/build/environment install /opt/build/lock.txt

FROM runtime AS tpu
COPY --from=environment-tpu /opt/stratbench /opt/stratbench
COPY --from=project /opt/root /

# What drives runs on a TPU VM by itself, with the devices of that host.
FROM tpu AS tpu-head
COPY --from=driver /opt/root /

# For hosts that cannot pull prom/prometheus; see compose.yaml.
FROM ${BASE_IMAGE} AS prometheus
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends --yes prometheus >/dev/null \
 && rm -rf /var/lib/apt/lists/*
USER 10001:10001
ENTRYPOINT ["prometheus"]

FROM cpu
