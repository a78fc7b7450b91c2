#!/bin/sh
# install_project.sh MODE PYTHON EXTRA: put the project's wheel, which lies in wheels/ beside this script, into /opt/openclaw.
#   venv     into a virtual environment over the base image's packages, from wheels/ alone: no network
#   mounted  unpacked; PYTHON, with the dependencies, is mounted when a container runs
set -eu
mode=$1
python=$2
extra=$3
here=$(cd "$(dirname "$0")" && pwd)
home=/opt/openclaw

set -- "$here"/wheels/openclaw_rl-*.whl
if [ $# -ne 1 ] || [ ! -f "$1" ]; then
    echo "error: exactly one openclaw_rl-*.whl must be in image/wheels of the build context, found: $*" >&2
    exit 1
fi
wheel=$1
mkdir -p "$home/bin"

case $mode in
venv)
    # The base image's own packages count as there, pip and setuptools too (a venv's own setuptools would hide the pinned one),
    # so only what it lacks is taken from wheels/.
    "$python" -m venv --without-pip --system-site-packages "$home/venv"
    "$home/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-index \
        --find-links "$here/wheels" "openclaw-rl[$extra] @ file://$wheel"
    ln -s "$home/venv/bin/openclaw-rl" "$home/bin/openclaw-rl"
    packages=$("$home/venv/bin/python" -c 'import openclaw_core, pathlib; print(pathlib.Path(openclaw_core.__file__).parent)')
    ;;
mounted)
    mkdir -p "$home/site"
    unzip -q -o "$wheel" -d "$home/site"
    cat > "$home/bin/openclaw-rl" << END
#!/bin/sh
export PYTHONPATH="$home/site\${PYTHONPATH:+:\$PYTHONPATH}"
exec "$python" -P -m openclaw_core.cli "\$@"
END
    chmod 0755 "$home/bin/openclaw-rl"
    packages=$home/site/openclaw_core
    ;;
*)
    echo "error: INSTALL is $mode, wanted is venv or mounted" >&2
    exit 1
    ;;
esac

# The header plugin of the openclaw CLI is part of the wheel; a name of its own, for a configuration by hand.
if [ ! -f "$packages/feeder/plugin/openclaw.plugin.json" ]; then
    echo "error: the wheel lacks feeder/plugin" >&2
    exit 1
fi
ln -s "$packages/feeder/plugin" "$home/plugin"
