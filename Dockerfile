# syntax=docker/dockerfile:1
# Everything that is installed is checked against the hashes of the lock files.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# The build backend and what it needs, out of the development lock; one that is missing here stops the build.
COPY requirements-dev.lock ./
RUN awk '/^[a-z]/ { keep = /^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/ } keep' requirements-dev.lock > build.lock \
 && python -m venv /build && /build/bin/pip install --require-hashes -r build.lock
COPY requirements.lock ./
RUN python -m venv /opt/tidegate && /opt/tidegate/bin/pip install --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY proxy ./proxy
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/tidegate/bin/pip install --no-deps --no-index /wheels/*.whl \
 && /opt/tidegate/bin/python -m compileall -q /opt/tidegate/lib \
 && /opt/tidegate/bin/tidegate --version

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="tidegate" \
      org.opencontainers.image.description="OpenAI- and Anthropic-compatible load-balancing proxy for vLLM" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/tidegate /opt/tidegate
# A container is reached from outside itself, so every interface; set auth.keys where others can reach it too.
# TIDEGATE_CONFIG may name a mounted configuration file; any other TIDEGATE_ variable is a setting.
# HEALTHCHECK_URL has to follow when the port changes, or when admin.listen gives the admin paths their own.
ENV PATH=/opt/tidegate/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TIDEGATE_LISTEN__HOST=0.0.0.0 \
    HEALTHCHECK_URL=http://127.0.0.1:8900/healthz
USER 10001:10001
EXPOSE 8900
HEALTHCHECK --interval=10s --timeout=3s --start-period=15s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['HEALTHCHECK_URL'], timeout=2)"]
ENTRYPOINT ["tidegate"]
CMD ["serve"]
