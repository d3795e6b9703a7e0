# Two stages: the first builds the wheel and installs it with the locked, hash-checked versions;
# the second has Python, that environment (with OpenTelemetry), and a user who may write to /data and nowhere
# else. So the root file system may be read-only: docker run --read-only --tmpfs /tmp -v data:/data ...
#
# PYTHON names the base image. Pin it to a digest for a build that can be repeated:
# docker build --build-arg PYTHON=python:3.13.9-slim-bookworm@sha256:... .
ARG PYTHON=python:3.13.9-slim-bookworm
FROM ${PYTHON} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/toolrelay
WORKDIR /src
COPY requirements.lock ./
RUN /opt/toolrelay/bin/pip install --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY migrations/ migrations/
COPY fixtures/demo/ fixtures/demo/
COPY proxy/ proxy/
RUN pip wheel --no-deps --wheel-dir /wheels . \
 && /opt/toolrelay/bin/pip install --no-deps --no-index /wheels/toolrelay-*.whl

FROM ${PYTHON}
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="toolrelay" \
      org.opencontainers.image.description="OpenAI-compatible reverse proxy that runs tools" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="docker.io/library/python:3.13.9-slim-bookworm"
RUN useradd --system --no-create-home --home-dir /data --uid 10001 toolrelay \
 && install -d -m 0700 -o toolrelay -g toolrelay /data
COPY --from=build /opt/toolrelay /opt/toolrelay
ENV PATH=/opt/toolrelay/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    TOOLRELAY_SERVER__HOST=0.0.0.0 \
    TOOLRELAY_STORE__URL=sqlite:////data/toolrelay.db
# A toolrelay.toml in /data is read, and paths in it are relative to /data.
WORKDIR /data
USER toolrelay
VOLUME ["/data"]
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s --retries=3 CMD ["python", "-c", "import http.client as h, os, sys; c = h.HTTPConnection('127.0.0.1', int(os.environ.get('TOOLRELAY_SERVER__PORT', '8080')), timeout=3); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
# SIGTERM drains: open streams get server.drain_s (25 s); give the container longer than that to stop.
STOPSIGNAL SIGTERM
ENTRYPOINT ["toolrelay"]
CMD ["serve"]
