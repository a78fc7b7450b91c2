#!/bin/sh
# doctor.sh ARGUMENTS...: the last step of a build. Where Python is mounted there is none yet: the check is for the container.
set -eu
if [ ! -d /opt/openclaw/venv ]; then
    echo "no Python while building: run openclaw-rl doctor in a container"
    exit 0
fi
exec openclaw-rl doctor "$@"
