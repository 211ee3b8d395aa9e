# syntax=docker/dockerfile:1
# The gateway and the emulated workers: python -m gateway, python -m loadtest.worker.
# docker build --build-arg TIDEGATE_COMMIT="$(git rev-parse HEAD)" -t tidegate .

FROM python:3.12-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN python -m venv --without-pip /opt/venv
COPY requirements.runtime.lock /build/
# Wheels only: nothing is compiled, here or later.
RUN python -m pip --python /opt/venv/bin/python install --no-cache-dir --require-hashes --only-binary :all: \
    -r /build/requirements.runtime.lock
COPY gateway /opt/tidegate/gateway
COPY policy_store /opt/tidegate/policy_store
COPY loadtest /opt/tidegate/loadtest
RUN /opt/venv/bin/python -m compileall -q /opt/tidegate

FROM python:3.12-slim
ARG TIDEGATE_COMMIT=unknown
LABEL org.opencontainers.image.title="Tidegate" \
      org.opencontainers.image.description="SLO-aware routing gateway for disaggregated LLM inference" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${TIDEGATE_COMMIT}" \
      org.opencontainers.image.base.name="docker.io/library/python:3.12-slim"
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/tidegate \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TIDEGATE_COMMIT=${TIDEGATE_COMMIT}
COPY --from=build /opt/venv /opt/venv
COPY --from=build /opt/tidegate /opt/tidegate
COPY LICENSE /opt/tidegate/
WORKDIR /
# A number, so that Kubernetes can tell that it is not root.
USER 65532:65532
EXPOSE 8080
STOPSIGNAL SIGTERM
# Liveness, which depends on no worker. Another server.port needs another URL here.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-m", "gateway.commands.healthcheck", "http://127.0.0.1:8080/livez"]
ENTRYPOINT ["python", "-m", "gateway"]
CMD ["serve", "--config", "/etc/tidegate/tidegate.yaml"]
