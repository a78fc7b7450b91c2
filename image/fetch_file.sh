#!/bin/sh
# fetch_file.sh URL FILE SHA256: download and compare. With an empty SHA256 the checksum is printed, to be pinned.
set -eu
curl --fail --silent --show-error --location --retry 5 --output "$2" "$1"
found=$(sha256sum "$2" | cut -d ' ' -f 1)
if [ -z "$3" ]; then
    echo "warning: $1 is not pinned yet: its sha256 is $found" >&2
elif [ "$found" != "$3" ]; then
    echo "error: $1 has sha256 $found, wanted is $3" >&2
    exit 1
fi
