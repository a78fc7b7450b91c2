#!/bin/sh
# doctor.sh ARGUMENTS...: the last step of a build, in the environment of the entry point. Where Python is mounted there is none
# yet, nor what bash is linked with: the check is for the container.
set -eu
if [ ! -d /opt/openclaw/venv ]; then
    echo "no Python while building: run openclaw-rl doctor in a container"
    exit 0
fi
exec /opt/openclaw/bin/entrypoint openclaw-rl doctor "$@"
