#!/bin/sh
# add_user.sh NAME UID GID: the user that the image runs as, on Ubuntu and on busybox alike.
# GID 1000 is HwHiAiUser on an Ascend host, the group that may open /dev/davinci*.
set -eu
touch /etc/passwd /etc/group
if ! cut -d : -f 3 /etc/group | grep -qx "$3"; then
    echo "HwHiAiUser:x:$3:" >> /etc/group
fi
if cut -d : -f 3 /etc/passwd | grep -qx "$2"; then
    echo "error: uid $2 is taken in the base image: $(grep "^[^:]*:[^:]*:$2:" /etc/passwd); choose another APP_UID" >&2
    exit 1
fi
echo "$1:x:$2:$3:openclaw-rl:/home/$1:/bin/bash" >> /etc/passwd
mkdir -p "/home/$1" /opt/openclaw/work
chown "$2:$3" "/home/$1" /opt/openclaw/work
