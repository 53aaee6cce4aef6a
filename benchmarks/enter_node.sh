#!/bin/sh
# enter_node.sh [-x] ADDRESS COMMAND...: what link.py has in place of ssh. It runs the command on a
# node: in its network namespace, with its own host name and shared memory.
while [ "${1#-}" != "$1" ]; do shift; done
node=${1##*.}
shift
exec ip netns exec "skl$node" unshare --uts --ipc --mount sh -c \
    "hostname skl-node$node && mount -t tmpfs tmpfs /dev/shm && exec sh -c \"\$0\"" "$*"
