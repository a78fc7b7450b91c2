#!/bin/bash
# Before anything else: the environment of CANN, of its compiler and of ATB, as the base image's own entry point does it.
source_environment() {
    local file=$1
    shift # what is sourced would read the function's arguments as its own
    if [ -r "$file" ]; then
        # shellcheck disable=SC1090
        source "$file" || { echo "error: $file failed" >&2; exit 1; }
    elif [ -d /usr/local/Ascend/ascend-toolkit ]; then
        echo "error: CANN is here, but $file cannot be read" >&2
        exit 1
    fi
}

source_environment /usr/local/Ascend/ascend-toolkit/set_env.sh
source_environment /usr/local/Ascend/cann-8.5.0/share/info/ascendnpu-ir/bin/set_env.sh
source_environment /usr/local/Ascend/nnal/atb/set_env.sh

# With --user the home of this image may not be writable; compilers of kernels keep their caches there.
if [ ! -w "${HOME:-/}" ] || [ "${HOME:-/}" = / ]; then
    HOME=/tmp/home-$(id -u)
    export HOME
    mkdir -p -m 0700 "$HOME" || exit 1
fi

exec "$@"
