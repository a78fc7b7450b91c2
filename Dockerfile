# openclaw-rl for Ascend hosts: this project on the stack of image/stack.Dockerfile (CANN 8.5.0, torch 2.8.0, SGLang 0.5.10).
# Two files, not two stages of one: the builder that docker-py speaks to runs every stage before the wanted one, so a build on
# another base would first pull CANN. Pins, build arguments, stand-in bases: docs/IMAGE.md.
#
#   make image-context && docker build -t openclaw-rl:1 .

ARG BASE_IMAGE=openclaw-rl-stack:cann8.5.0-910b-1
FROM ${BASE_IMAGE}

# The same arguments can be given to both builds. Nothing of this part reaches the network.
ARG APT_MIRROR
ARG PIP_INDEX_URL
ARG NPM_CONFIG_REGISTRY
ARG GITHUB_PREFIX
ARG HF_ENDPOINT

# 1000 is HwHiAiUser, the owner of the devices on an Ascend host.
ARG APP_USER=openclaw
ARG APP_UID=1000
ARG APP_GID=1000
# venv, or mounted: Python and the dependencies come with the container.
ARG INSTALL=venv
ARG EXTRA=npu
ARG PYTHON=/usr/local/python3.11.14/bin/python3
# An image that is being built has no NPU, and is no host.
ARG DOCTOR="--image"

USER 0
WORKDIR /opt/openclaw/work

COPY image/add_user.sh /opt/openclaw/build/
RUN sh /opt/openclaw/build/add_user.sh "${APP_USER}" "${APP_UID}" "${APP_GID}"

COPY image/check_pins.py image/doctor.sh image/install_project.sh image/pins.txt image/requirements.lock /opt/openclaw/build/
COPY image/entrypoint.sh /opt/openclaw/bin/entrypoint
COPY image/wheels/ /opt/openclaw/build/wheels/
RUN sh /opt/openclaw/build/install_project.sh "${INSTALL}" "${PYTHON}" "${EXTRA}" \
 && chmod -R a+rX /opt/openclaw \
 && chmod 0755 /opt/openclaw/bin/entrypoint \
 && if [ -d /opt/stack ]; then \
        /opt/openclaw/venv/bin/python /opt/openclaw/build/check_pins.py --complete \
            /opt/openclaw/build/requirements.lock /opt/openclaw/build/pins.txt; \
    fi

ENV PATH=/opt/openclaw/bin:/opt/openclaw/venv/bin:${PATH} \
    DO_NOT_TRACK=1 \
    PREFECT_SERVER_ANALYTICS_ENABLED=false \
    RAY_USAGE_STATS_ENABLED=0

ENTRYPOINT ["/opt/openclaw/bin/entrypoint"]
CMD ["openclaw-rl", "--help"]
USER ${APP_UID}:${APP_GID}

# hadolint ignore=SC2086
RUN /opt/openclaw/bin/entrypoint sh /opt/openclaw/build/doctor.sh ${DOCTOR}

# Last, so that only this layer is new where nothing else is.
ARG BASE_IMAGE
ARG VERSION=0
ARG REVISION=unknown
ARG CODE_DIGEST=unknown
LABEL org.opencontainers.image.title="openclaw-rl" \
      org.opencontainers.image.description="Train a language model online from live conversations, on Ascend 910B" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      openclaw.code-digest="${CODE_DIGEST}"
