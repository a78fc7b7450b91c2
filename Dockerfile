# openclaw-rl for Ascend hosts: this project on the stack of image/stack.Dockerfile (CANN 8.5.0, torch 2.8.0, SGLang 0.5.10).
# Two files, not two stages of one: the builder that docker-py speaks to runs every stage before the wanted one, so a build on
# another base would first pull CANN. Pins, build arguments, stand-in bases: docs/IMAGE.md. Nothing here reaches the network.
#
#   make image-context && docker build -t openclaw-rl:1 .

ARG BASE_IMAGE=openclaw-rl-stack:cann8.5.0-910b-1
FROM ${BASE_IMAGE}

ENV PATH=/opt/openclaw/bin:/opt/openclaw/venv/bin:${PATH} \
    DO_NOT_TRACK=1 \
    PREFECT_SERVER_ANALYTICS_ENABLED=false \
    RAY_USAGE_STATS_ENABLED=0
WORKDIR /opt/openclaw/work
ENTRYPOINT ["/opt/openclaw/bin/entrypoint"]
CMD ["openclaw-rl", "--help"]

# 1000 is HwHiAiUser, the owner of the devices on an Ascend host.
ARG APP_USER=openclaw
ARG APP_UID=1000
ARG APP_GID=1000
# venv, or mounted: Python and the dependencies come with the container.
ARG INSTALL=venv EXTRA=npu PYTHON=/usr/local/python3.11.14/bin/python3

COPY image/add_user.sh image/check_pins.py image/doctor.sh image/entrypoint.sh image/install_project.sh \
     image/pins.txt image/requirements.lock /opt/openclaw/build/
COPY image/wheels/ /opt/openclaw/build/wheels/
USER 0
RUN sh /opt/openclaw/build/add_user.sh "${APP_USER}" "${APP_UID}" "${APP_GID}" \
 && sh /opt/openclaw/build/install_project.sh "${INSTALL}" "${PYTHON}" "${EXTRA}" \
 && cp /opt/openclaw/build/entrypoint.sh /opt/openclaw/bin/entrypoint \
 && chmod -R a+rX /opt/openclaw \
 && chmod 0755 /opt/openclaw/bin/entrypoint \
 && if [ -d /opt/stack ]; then \
        /opt/openclaw/venv/bin/python /opt/openclaw/build/check_pins.py --complete \
            /opt/openclaw/build/requirements.lock /opt/openclaw/build/pins.txt; \
    fi
USER ${APP_UID}:${APP_GID}

# An image that is being built has no NPU, and is no host.
ARG DOCTOR="--image"
# hadolint ignore=SC2086
RUN sh /opt/openclaw/build/doctor.sh ${DOCTOR}

# Last, so that only this layer is new where nothing else is.
ARG BASE_IMAGE VERSION=0 REVISION=unknown CODE_DIGEST=unknown
LABEL org.opencontainers.image.title="openclaw-rl" \
      org.opencontainers.image.description="Train a language model online from live conversations, on Ascend 910B" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      openclaw.code-digest="${CODE_DIGEST}"
