# nodes.sh FOLDER COMMAND: run COMMAND on two nodes that see the same files, each with processes and a network of its own.
# NODE is 1 or 2, and HEAD the address of the first one. Ends with the code of node 1, and with all processes of both.
set -eu
export HEAD=10.99.0.1 RAY_USAGE_STATS_ENABLED=0
folder=$1
shift
network='ip link set lo up && ip addr add 10.99.0.$NODE/24 dev veth$NODE && ip link set veth$NODE up'
ip link add veth1 type veth peer name veth2
NODE=2 RAY_TMPDIR=$folder/2 unshare --net --pid --fork --kill-child --mount-proc sh -c \
  "until ip link show veth2 >/dev/null 2>&1; do sleep 0.05; done; $network && exec \"\$@\"" sh "$@" >"$folder/said-2" 2>&1 &
until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
ip link set veth2 netns $!
export NODE=1 RAY_TMPDIR=$folder/1
eval "$network"
"$@"
