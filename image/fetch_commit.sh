#!/bin/sh
# fetch_commit.sh REPOSITORY COMMIT FOLDER: exactly that commit, without its history. Git checks the content against the
# commit's name, so a mirror cannot change it.
set -eu
git init --quiet "$3"
git -C "$3" fetch --quiet --depth 1 "$1" "$2"
git -C "$3" -c advice.detachedHead=false checkout --quiet FETCH_HEAD
found=$(git -C "$3" rev-parse HEAD)
if [ "$found" != "$2" ]; then
    echo "error: $1 gave commit $found, wanted is $2" >&2
    exit 1
fi
